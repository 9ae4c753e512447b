"""Tool calls under the chat's lock: recorded, answered, closed, and settled into history.

A call is *answered* once it has a result, and *settled* once that result stands in history. Results
of one assistant message are settled together, in call order, when the last one is answered; so a
user's message never enters history between a call and its result.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import cast
from uuid import UUID

from sqlalchemy.orm import Session

from models.machine.change import Change
from models.machine.history import append, generated
from models.machine.store import OPEN_CALLS
from models.tables import ToolCallRow
from models.types import as_json, escaped
from rejoinder.core import parts
from rejoinder.core.effects import Event, EventKind, Send
from rejoinder.core.errors import Rejected
from rejoinder.core.messages import (
    ANSWERED,
    ActionKind,
    Approval,
    CallKind,
    CallPlan,
    CallState,
    Delivery,
    NewMessage,
    Role,
)
from rejoinder.core.parts import Json, ToolResult

INTERRUPTED = "The user stopped the turn before this call was answered."
SUPERSEDED = "The user went on before this call was answered."
TIMED_OUT = "No answer came before the deadline."
BY_DEFAULT = "nobody answered in time, which counts as a yes here"
DENIED = "The user did not allow this call, and it was not made."
UNKNOWN = (
    "The worker stopped while this call was running. Its outcome is unknown: it may or may not have"
    " taken effect. Check before you repeat it."
)
_STARTED = " It had started; what it did until then is unknown."
_SENT = " Another app has it: it may still be running, or may yet be run. Its outcome is unknown."

Calls = Sequence[ToolCallRow]


def unsettled(change: Change) -> Calls:
    """The calls that history waits for, in call order."""
    change.flush()  # reading rows anew would undo answers that are not written yet
    found = change.store.open_calls(change.chat.id)
    change.has_open_calls = bool(found)
    return cast("Calls", found)


def looked_at(tx: Session, chat_id: UUID) -> Calls:
    """The same, for somebody who only looks. No lock."""
    return cast("Calls", tx.execute(OPEN_CALLS, {"chat_id": chat_id}).all())


def unanswered(calls: Calls, kind: CallKind | None = None) -> Calls:
    """Those without a result (of one kind)."""
    return [c for c in calls if c.state not in ANSWERED and kind in (None, c.kind)]


def record(
    change: Change,
    message: NewMessage,
    requested: Sequence[parts.ToolCall],
    plans: Mapping[str, CallPlan],
    start: Iterable[str],
) -> None:
    """Add an assistant's message and its calls; those that begin now are marked as started."""
    starting = set(start)
    planned = [(call, plans.get(call.call_id, CallPlan())) for call in requested]
    generated(
        change,
        message,
        [
            _row(call, plan, change.now if call.call_id in starting else None)
            for call, plan in planned
        ],
    )
    change.has_open_calls = bool(planned)
    change.store.note_calls(_known(change, planned, starting))
    if any(plan.kind is CallKind.EXTERNAL and c.call_id in starting for c, plan in planned):
        send(change, [call for call in unsettled(change) if call.call_id in starting])


def _row(call: parts.ToolCall, plan: CallPlan, started_at: datetime | None) -> dict[str, object]:
    waits_for = f"{{{','.join(map(str, plan.waits_for))}}}"
    return {
        "call_id": escaped(call.call_id),
        "name": escaped(call.name),
        "arguments": as_json(call.arguments),
        "kind": plan.kind,
        "delivery": plan.delivery,
        "external_id": plan.external_id and escaped(plan.external_id),
        "approval": Approval.WANTED if plan.approval else None,
        "patience": plan.seconds,
        "default_answer": as_json(vars(plan.default)) if plan.default else None,
        "waits_for": waits_for if plan.kind is CallKind.CHILDREN else None,
        "state": CallState.STARTED if started_at else CallState.REQUESTED,
        "started_at": started_at,
    }


def _known(
    change: Change, planned: Sequence[tuple[parts.ToolCall, CallPlan]], starting: set[str]
) -> Sequence[Mapping[str, object]] | None:
    """The rows as their owner knows them, if nobody else has a hand in them."""
    if any(plan.kind is not CallKind.LOCAL or plan.approval for _, plan in planned):
        return None
    return [
        {
            "message_id": change.message_ids[-1],
            "call_id": call.call_id,
            "name": call.name,
            "kind": plan.kind,
            "delivery": plan.delivery,
            "external_id": plan.external_id,
            "approval": None,
            "note": None,
            "state": CallState.STARTED if call.call_id in starting else CallState.REQUESTED,
            "started_at": change.now if call.call_id in starting else None,
            "ended_at": None,
            "result": None,
            "settled": False,
        }
        for call, plan in planned
    ]


def start(change: Change, calls: Calls, call_ids: Iterable[str]) -> None:
    """Mark calls as about to run, before they do."""
    wanted = set(call_ids)
    for call in _named(calls, wanted):
        if call.state in ANSWERED:
            raise Rejected(
                f"Tool call {call.call_id!r} was {call.state} already",
                "start only calls that are requested",
            )
        if call.state is CallState.STARTED:
            continue  # by us: the answer to the first try was lost
        if call.approval is Approval.WANTED:
            raise Rejected(
                f"Tool call {call.call_id!r} waits for approval",
                "park, and start it when it is given",
            )
        call.state = CallState.STARTED
        call.started_at = change.now
        send(change, [call])


def send(change: Change, calls: Calls) -> None:
    """Have those that are another app's tasks sent, once this is committed."""
    change.sends.extend(
        Send(
            change.chat.id,
            call.call_id,
            call.name,
            call.external_id,
            call.arguments,
            call.delivery is Delivery.IDEMPOTENT,
        )
        for call in calls
        if call.kind is CallKind.EXTERNAL and call.external_id
    )


def unstart(calls: Calls, call_ids: Iterable[str]) -> None:
    """Take back the mark of calls that never began."""
    for call in _named(calls, set(call_ids)):
        if call.state is CallState.STARTED:
            call.state, call.started_at = CallState.REQUESTED, None


def answer(change: Change, calls: Calls, results: Iterable[ToolResult]) -> None:
    """Give calls their results. They are not in history yet."""
    given = list(results)
    by_id = {result.call_id: result for result in given}
    if len(by_id) < len(given):
        raise Rejected("Two results are for the same tool call", "answer each call once")
    for call in _named(calls, set(by_id)):
        if call.state in ANSWERED:
            raise Rejected(
                f"Tool call {call.call_id!r} has its result already", "answer each call once"
            )
        _set(change, call, CallState.FINISHED, by_id[call.call_id])


def close(change: Change, calls: Calls, reason: str) -> None:
    """Answer everything that is unanswered with an error that tells the model why."""
    for call in unanswered(calls):
        started = call.state is CallState.STARTED
        known = _SENT if call.kind is CallKind.EXTERNAL else _STARTED
        content = reason + known if started else reason
        result = ToolResult(call.call_id, content, is_error=True)
        _set(change, call, CallState.UNKNOWN if started else CallState.FINISHED, result)
        if call.external_id:
            change.abandoned.append(call.external_id)


def drop_started(change: Change, calls: Calls) -> None:
    """Deal with calls whose worker stopped running them: run again, or an honest "unknown"."""
    for call in calls:
        if call.state is not CallState.STARTED or call.kind is not CallKind.LOCAL:
            continue  # another app's task goes on without us, and will answer
        if call.delivery is Delivery.IDEMPOTENT:
            unstart([call], [call.call_id])
        else:
            result = ToolResult(call.call_id, UNKNOWN, is_error=True)
            _set(change, call, CallState.UNKNOWN, result)


def settle(change: Change, calls: Calls) -> None:
    """Put the results into history, in call order, if all are there."""
    if not calls or unanswered(calls):
        return
    results = tuple(parts.from_json(call.result) for call in calls if call.result is not None)
    append(change, NewMessage(Role.TOOL, results))
    for call in calls:
        call.settled = True
    change.has_open_calls = False


def close_all(change: Change, reason: str) -> None:
    """Close what is open, and put it into history: a user's message may follow."""
    open_calls = unsettled(change)
    close(change, open_calls, reason)
    settle(change, open_calls)


def forget(change: Change, calls: Calls, reason: str) -> None:
    """Close calls whose message is leaving history: no result goes there."""
    close(change, calls, reason)
    for call in calls:
        call.settled = True


def asking(calls: Calls) -> Calls:
    """Those that somebody outside has to answer or to allow."""
    return [
        call
        for call in unanswered(calls)
        if call.kind is CallKind.CLIENT or call.approval is Approval.WANTED
    ]


def elsewhere(calls: Calls) -> Calls:
    """Those that another app's task or a child chat answers, once they are allowed."""
    return [
        call
        for call in unanswered(calls)
        if call.kind in (CallKind.EXTERNAL, CallKind.CHILDREN) and call not in asking([call])
    ]


def ask(change: Change, calls: Calls) -> None:
    """Tell readers what somebody outside has to do, and until when."""
    asked: list[Json] = [asked_for(call) for call in calls]
    data: dict[str, Json] = {"kind": ActionKind.CALLS, "calls": asked}
    change.events.append(Event(EventKind.ACTION_REQUIRED, data))


def asked_for(call: ToolCallRow) -> dict[str, Json]:
    """A call as those are told who have to answer or to allow it."""
    return {
        "call_id": call.call_id,
        "name": call.name,
        "arguments": call.arguments,
        "approval": call.approval is Approval.WANTED,
        "deadline": call.deadline.isoformat() if call.deadline else None,
    }


def deadline_of(change: Change, calls: Calls, seconds: float) -> datetime:
    """When the first of these has waited long enough. A call that parks again gets no new time."""
    for call in calls:
        if call.deadline is None:
            patience = _patience(call)
            call.deadline = change.now + timedelta(
                seconds=seconds if patience is None else patience
            )
    return min(call.deadline for call in calls if call.deadline)


def _patience(call: ToolCallRow) -> float | None:
    """How long it waits: for a person who allows it, and, after that, for its answer."""
    if call.approval is not Approval.WANTED:
        return call.patience
    asked = (call.default_answer or {}).get("seconds")
    return asked if isinstance(asked, int | float) else None


def decide(change: Change, calls: Calls, *, approved: bool, note: str | None) -> None:
    """Allow calls, or deny them, in words that the model will read."""
    for call in calls:
        if approved:
            call.approval, call.note, call.deadline = Approval.GRANTED, note, None
        else:
            said = f"{DENIED} The reason: {note}" if note else DENIED
            result = ToolResult(call.call_id, said, is_error=True)
            _set(change, call, CallState.FINISHED, result)


def overdue(change: Change, calls: Calls) -> None:
    """Give calls whose time is up the answer that was declared for that, or an error."""
    for call in calls:
        given = call.default_answer
        if call.approval is Approval.WANTED:
            allowed = bool(given and given.get("approve"))
            decide(change, [call], approved=allowed, note=BY_DEFAULT if allowed else TIMED_OUT)
        elif given is not None and given.get("approve") is None:
            result = ToolResult(call.call_id, given["content"], is_error=given["is_error"] is True)
            _set(change, call, CallState.FINISHED, result)
        else:
            close(change, [call], TIMED_OUT)


def _set(change: Change, call: ToolCallRow, state: CallState, result: ToolResult) -> None:
    call.state = state
    call.result = parts.to_json(_with_note(result, call.note))
    call.ended_at = change.now


def _with_note(result: ToolResult, note: str | None) -> ToolResult:
    """What the person who allowed the call said, told to the model with its result."""
    if not note:
        return result
    told = f"[It was allowed with the words: {note}]"
    match result.content:
        case str(text):
            content: Json = f"{text}\n\n{told}"
        case [*blocks] if all(isinstance(block, Mapping) and "type" in block for block in blocks):
            content = [*blocks, {"type": "text", "text": told}]
        case other:
            content = {"result": other, "note": told}
    return replace(result, content=content)


def _named(calls: Calls, wanted: set[str]) -> Calls:
    found = [call for call in calls if call.call_id in wanted]
    if missing := wanted - {call.call_id for call in found}:
        raise Rejected(
            f"No open tool call has the id {', '.join(sorted(map(repr, missing)))}",
            "answer exactly the calls that the chat asked for",
        )
    return found
