"""The transitions of the worker that owns a chat. All of them are fenced.

A worker whose lease is gone, or whose chat was edited, gets `Stale`: it leaves and has changed
nothing. One whose chat is to be stopped gets `StopRequested`: it calls `finish_interrupt`. Claiming
is in `claim.py`, as one statement.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from models import trees
from models.machine import calls, history, partials, queue
from models.machine.change import Change, after, begin
from models.machine.store import AnyStore, store_of
from models.tables import Turn
from rejoinder.core import parts
from rejoinder.core.effects import Effects, Event, EventKind, Fence
from rejoinder.core.errors import Rejected
from rejoinder.core.messages import (
    ActionKind,
    Budget,
    CallPlan,
    Compaction,
    Failure,
    NewMessage,
    TurnKind,
    TurnState,
)
from rejoinder.core.parts import Json, ToolResult
from rejoinder.core.state import Status, Transition


def record(
    tx: AnyStore,
    fence: Fence,
    message: NewMessage,
    *,
    plans: Mapping[str, CallPlan] | None = None,
    start: Iterable[str] = (),
) -> Effects:
    """record: running → running; the assistant's message stands before any of its tools runs.

    `start` names the calls that this worker runs next: a crash from here on means that they may
    have taken effect.
    """
    change = begin(tx, fence.chat_id, Transition.RECORD, fence=fence)
    _record(change, message, plans or {}, start)
    return change.effects()


def start_tools(tx: AnyStore, fence: Fence, call_ids: Iterable[str]) -> Effects:
    """start_tools: running → running; calls left over from another worker are about to run."""
    change = begin(tx, fence.chat_id, Transition.START_TOOLS, fence=fence)
    calls.start(change, calls.unsettled(change), call_ids)
    return change.effects()


def commit(
    tx: AnyStore,
    fence: Fence,
    *,
    message: NewMessage | None = None,
    results: Iterable[ToolResult] = (),
    stay: bool = False,
) -> Effects:
    """commit: running → pending; the step is done and there is more to do.

    To `stay` is to claim the chat again in the same breath, for the worker's next step: running →
    running, under a new lease. Only by compare-and-set: if somebody else has had to do with the
    chat, it is anybody's.
    """
    change = begin(tx, fence.chat_id, Transition.COMMIT, fence=fence)
    _answer(change, results)
    if message is not None:
        _record(change, message, {}, ())
    change.chat.crashes = 0
    if stay and change.store.can_stay and not change.chat.queue_length:
        change.stay()
    else:
        queue.go_on(change)
    return change.effects()


def store_compaction(tx: AnyStore, fence: Fence, compaction: Compaction) -> Effects:
    """store_compaction: running → pending, or, if only that was asked for, the turn is over."""
    change = begin(tx, fence.chat_id, Transition.STORE_COMPACTION, fence=fence)
    _refuse_open_calls(change, "History cannot be compacted")
    history.append(change, compaction.summary)
    history.append(change, compaction.marker)
    history.count(change, compaction.marker)
    done = {**compaction.told, "state": "finished"}
    change.events.append(Event(EventKind.COMPACTION, done))  # before the next step tells anything
    change.chat.crashes = 0
    turn = change.store.session.get_one(Turn, change.chat.turn_id)
    if turn.kind is TurnKind.COMPACTION:
        history.end_turn(change, TurnState.FINISHED)
        queue.rest_or_next(change)
    else:
        queue.go_on(change)
    return change.effects()


def finish_turn(
    tx: AnyStore,
    fence: Fence,
    *,
    message: NewMessage | None = None,
    notice: NewMessage | None = None,
) -> Effects:
    """finish_turn: running → waiting, or pending with the queue's head promoted.

    `notice` is something about the answer that people should read and the model should not.
    """
    change = begin(tx, fence.chat_id, Transition.FINISH_TURN, fence=fence)
    _refuse_open_calls(change, "The turn cannot end", message)
    if message is not None:
        answer_id = history.generated(change, message)
        answer: tuple[int, str] | None = (answer_id, parts.text_of(message.parts))
    else:
        answer = history.last_answer(change)
    if notice is not None:
        history.append(change, notice)
    change.chat.crashes = 0
    history.end_turn(change, TurnState.FINISHED, answer=answer)
    queue.rest_or_next(change)
    return change.effects()


def retry_later(  # noqa: PLR0913  # all but two are named
    tx: AnyStore,
    fence: Fence,
    *,
    delay_seconds: float,
    retry_state: Mapping[str, Json],
    results: Iterable[ToolResult] = (),
    untouched: Iterable[str] = (),
    lost: NewMessage | None = None,
) -> Effects:
    """retry_later: running → pending, not before the delay has passed; attempt + 1.

    `lost` is an answer that is not kept: it was paid for all the same. So with `fail`.
    """
    change = begin(tx, fence.chat_id, Transition.RETRY_LATER, fence=fence)
    _answer(change, results, untouched)
    history.count_lost(change, lost)
    change.chat.attempt += 1
    change.chat.claims_since_progress = 0
    change.chat.retry_state = dict(retry_state)
    run_after = after(change.now, delay_seconds)
    change.to(Status.PENDING, run_after=run_after)
    change.events.append(
        Event(
            EventKind.RETRY,
            {**retry_state, "attempt": change.chat.attempt, "run_after": run_after.isoformat()},
        )
    )
    return change.effects()


def require_action(
    tx: AnyStore, fence: Fence, *, deadline_seconds: float, results: Iterable[ToolResult] = ()
) -> Effects:
    """require_action: running → requires_action; `results` are those of the other calls."""
    change = begin(tx, fence.chat_id, Transition.REQUIRE_ACTION, fence=fence)
    open_calls = _answer(change, results)
    wanted = calls.asking(open_calls)
    if not wanted:
        raise Rejected(
            "No call waits for somebody outside", "commit, instead of parking the chat for nothing"
        )
    change.chat.crashes = 0
    deadline = calls.deadline_of(change, wanted, deadline_seconds)
    change.to(Status.REQUIRES_ACTION, deadline=deadline, action=ActionKind.CALLS)
    calls.ask(change, wanted)
    return change.effects()


def exceed_budget(
    tx: AnyStore,
    fence: Fence,
    *,
    budget: Budget,
    deadline_seconds: float,
    spent: Mapping[str, Json],
) -> Effects:
    """exceed_budget: running → requires_action, until the budget is raised.

    `budget` is the one that was found too small. If it has been changed since, nobody would tell
    the chat again: it is runnable at once, and looks anew. The root is locked first, as by whoever
    changes the budget.
    """
    allowed = trees.lock_budget(store_of(tx).session, fence.chat_id)
    change = begin(tx, fence.chat_id, Transition.EXCEED_BUDGET, fence=fence)
    _refuse_open_calls(change, "The chat cannot wait for its budget")
    change.chat.crashes = 0
    if allowed != budget:
        queue.go_on(change)
        return change.effects()
    deadline = after(change.now, deadline_seconds)
    change.to(Status.REQUIRES_ACTION, deadline=deadline, action=ActionKind.BUDGET)
    change.events.append(
        Event(
            EventKind.ACTION_REQUIRED,
            {"kind": ActionKind.BUDGET, **spent, "deadline": deadline.isoformat()},
        )
    )
    return change.effects()


def sleep(
    tx: AnyStore, fence: Fence, *, deadline_seconds: float, results: Iterable[ToolResult] = ()
) -> Effects:
    """sleep: running → sleeping; pending at once if what it would wait for has come already."""
    change = begin(tx, fence.chat_id, Transition.SLEEP, fence=fence)
    open_calls = _answer(change, results)
    woken, change.chat.woken = change.chat.woken, False
    change.chat.crashes = 0
    outside = calls.elsewhere(open_calls)
    if woken or not outside:
        queue.go_on(change)
    else:
        deadline = calls.deadline_of(change, outside, deadline_seconds)
        change.to(Status.SLEEPING, deadline=deadline)
    return change.effects()


def fail(  # noqa: PLR0913  # all but three are named
    tx: AnyStore,
    fence: Fence,
    failure: Failure,
    *,
    message: NewMessage | None = None,
    results: Iterable[ToolResult] = (),
    untouched: Iterable[str] = (),
    lost: NewMessage | None = None,
) -> Effects:
    """fail: running → error; the queue stays, open calls stay open for a retry."""
    change = begin(tx, fence.chat_id, Transition.FAIL, fence=fence)
    history.count_lost(change, lost)
    if message is not None:
        _record(change, message, {}, ())
    _answer(change, results, untouched)
    history.end_turn(change, TurnState.FAILED, failure=failure)
    change.to(Status.ERROR, failure=failure)
    return change.effects()


def give_up(tx: AnyStore, fence: Fence, failure: Failure) -> Effects:
    """fail, where even that cannot be stored: the chat's row and its turn, and nothing else.

    Calls stay as they are; a retry finds out what became of them.
    """
    change = begin(tx, fence.chat_id, Transition.FAIL, fence=fence)
    history.end_turn(change, TurnState.FAILED, failure=failure)
    change.to(Status.ERROR, failure=failure)
    return change.effects()


def release(  # noqa: PLR0913  # all but two are named
    tx: AnyStore,
    fence: Fence,
    *,
    results: Iterable[ToolResult] = (),
    untouched: Iterable[str] = (),
    partial: NewMessage | None = None,
    counted: bool = False,
) -> Effects:
    """release: running → pending, nothing counted; interrupting → as finish_interrupt.

    `partial` stays in the row, for a stop that comes before the next claim. If the claim stays
    `counted`, it was one that came to nothing; a worker that goes takes it back.

    `untouched` are calls that were marked as started but never began: they can run later.
    """
    change = begin(tx, fence.chat_id, Transition.RELEASE, fence=fence)
    if change.before is Status.INTERRUPTING:
        finish_stopped(change, partial, results, untouched)
    else:
        history.count_lost(change, partial)
        _answer(change, results, untouched)
        queue.go_on(change)
        partials.keep(change, partial)
        if not counted:
            change.chat.claims_since_progress = max(0, change.chat.claims_since_progress - 1)
    return change.effects()


def finish_interrupt(
    tx: AnyStore,
    fence: Fence,
    *,
    partial: NewMessage | None = None,
    results: Iterable[ToolResult] = (),
    untouched: Iterable[str] = (),
) -> Effects:
    """finish_interrupt: interrupting → waiting, or pending with the head promoted."""
    change = begin(tx, fence.chat_id, Transition.FINISH_INTERRUPT, fence=fence)
    finish_stopped(change, partial, results, untouched)
    return change.effects()


def finish_stopped(
    change: Change,
    partial: NewMessage | None,
    results: Iterable[ToolResult] = (),
    untouched: Iterable[str] = (),
    reason: str = calls.INTERRUPTED,
) -> None:
    """Save what was produced, answer what was asked, and give way to the next message.

    A partial answer is never refused: of calls that share an id, the first is kept.
    """
    open_calls = calls.unsettled(change)
    calls.unstart(open_calls, untouched)
    calls.answer(change, open_calls, results)
    calls.close(change, open_calls, reason)
    calls.settle(change, open_calls)
    if partial is not None and partial.parts:
        _record(change, replace(partial, parts=parts.distinct(partial.parts)), {}, ())
        calls.close_all(change, reason)
    else:
        history.count_lost(change, partial)
    history.end_turn(change, TurnState.INTERRUPTED, answer=history.last_answer(change))
    queue.rest_or_next(change)


def _record(
    change: Change, message: NewMessage, plans: Mapping[str, CallPlan], start: Iterable[str]
) -> None:
    requested = parts.open_calls(message.parts)
    if change.has_open_calls:
        raise Rejected(
            "The assistant cannot speak while its tool calls are open", "answer those first"
        )
    if len({call.call_id for call in requested}) < len(requested):
        raise Rejected("Two tool calls of one message share an id", "give each an id of its own")
    calls.record(change, message, requested, plans, start)


def _refuse_open_calls(change: Change, what: str, message: NewMessage | None = None) -> None:
    if change.has_open_calls or (message and parts.open_calls(message.parts)):
        raise Rejected(f"{what} while tool calls are open", "answer them, and commit")


def _answer(
    change: Change, results: Iterable[ToolResult] = (), untouched: Iterable[str] = ()
) -> calls.Calls:
    """Keep the results there are; what had started without one is run again, or is unknown."""
    open_calls = calls.unsettled(change)
    calls.unstart(open_calls, untouched)
    calls.answer(change, open_calls, results)
    calls.drop_started(change, open_calls)
    calls.settle(change, open_calls)
    return open_calls
