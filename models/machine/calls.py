"""Tool calls under the chat's lock: recorded, answered, closed, and settled into history.

A call is *answered* once it has a result, and *settled* once that result stands in history. Results
of one assistant message are settled together, in call order, when the last one is answered; so a
user's message never enters history between a call and its result.
"""

from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import insert, select

from models.machine.change import Change
from models.machine.history import append
from models.tables import ToolCallRow
from rejoinder.core import parts
from rejoinder.core.errors import Rejected
from rejoinder.core.messages import (
    ANSWERED,
    CallKind,
    CallPlan,
    CallState,
    Delivery,
    NewMessage,
    Role,
)
from rejoinder.core.parts import ToolResult

INTERRUPTED = "The user stopped the turn before this call was answered."
SUPERSEDED = "The user went on before this call was answered."
TIMED_OUT = "No answer came before the deadline."
UNKNOWN = (
    "The worker stopped while this call was running. Its outcome is unknown: it may or may not have"
    " taken effect. Check before you repeat it."
)
_STARTED = " It had started; what it did until then is unknown."

Calls = Sequence[ToolCallRow]


def unsettled(change: Change) -> Calls:
    """The calls that history waits for, in call order. Index: tool_calls_open."""
    change.tx.flush()  # reading rows anew would undo answers that are not written yet
    return change.tx.scalars(
        select(ToolCallRow)
        .where(ToolCallRow.chat_id == change.chat.id, ~ToolCallRow.settled)
        .order_by(ToolCallRow.id)
        .execution_options(populate_existing=True)
    ).all()


def unanswered(calls: Calls, kind: CallKind | None = None) -> Calls:
    """Those without a result (of one kind)."""
    return [c for c in calls if c.state not in ANSWERED and kind in (None, c.kind)]


def record_calls(
    change: Change,
    message_id: int,
    requested: Sequence[parts.ToolCall],
    plans: Mapping[str, CallPlan],
    start: Iterable[str],
) -> None:
    """Store the calls of an assistant message that was just appended."""
    starting = set(start)
    rows = [
        {
            "chat_id": change.chat.id,
            "message_id": message_id,
            "call_id": call.call_id,
            "name": call.name,
            "arguments": call.arguments,
            "kind": (plan := plans.get(call.call_id, CallPlan())).kind,
            "delivery": plan.delivery,
            "external_id": plan.external_id,
            "state": CallState.STARTED if call.call_id in starting else CallState.REQUESTED,
            "started_at": change.now if call.call_id in starting else None,
        }
        for call in requested
    ]
    if rows:
        change.tx.execute(insert(ToolCallRow), rows)


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
        call.state = CallState.STARTED
        call.started_at = change.now


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
        content = reason + _STARTED if started else reason
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


def _set(change: Change, call: ToolCallRow, state: CallState, result: ToolResult) -> None:
    call.state = state
    call.result = parts.to_json(result)
    call.ended_at = change.now


def _named(calls: Calls, wanted: set[str]) -> Calls:
    found = [call for call in calls if call.call_id in wanted]
    if missing := wanted - {call.call_id for call in found}:
        raise Rejected(
            f"No open tool call has the id {', '.join(sorted(map(repr, missing)))}",
            "answer exactly the calls that the chat asked for",
        )
    return found
