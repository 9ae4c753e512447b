"""What every allowed cell does, in words: one function per transition.

Written from the design, not from the code. An `Outcome` names what is new or different after the
transition; what it does not name must be as it was. `observed.py` holds the rows against it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rejoinder.core.effects import Cause, EventKind
from rejoinder.core.state import Status, Transition

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.matrix.table import State

W, P, R, I = Status.WAITING, Status.PENDING, Status.RUNNING, Status.INTERRUPTING  # noqa: E741
A, S, E = Status.REQUIRES_ACTION, Status.SLEEPING, Status.ERROR
SETTLED = ("finished settled", "finished settled")


@dataclass(frozen=True)
class Outcome:
    """A chat after a transition, and what the transition added to it."""

    status: Status
    queue: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    """The states of call-1, call-2 …"""
    attempt: int = 0
    crashes: int = 0
    history: tuple[str, ...] = ()
    """New messages, in order."""
    deleted: bool = False
    """All messages that were there have left history."""
    ended: str | None = None
    """How the turn that was open has ended; None if it goes on, or none was."""
    opened: str | None = None
    """The kind of the turn that has begun."""
    cancelled: int = 0
    """Queued turns that will never begin."""
    steps: int = 0
    dispatched: bool = False
    delay: float = 0
    hint: Cause | None = None
    abandoned: tuple[str, ...] = ()
    also: tuple[EventKind, ...] = ()
    """Events beyond those of messages, queue, status and error."""
    answers: str | None = None
    """The message whose turn the caller is told, if not the open turn's."""
    through_queue: bool = False
    """A message entered the queue and left it again, so nothing of that is to be seen."""
    archived: bool = False
    woken: bool = False


STAGED_CALLS: dict[Status, tuple[str, ...]] = {
    W: (),
    P: ("requested", "requested"),
    R: ("requested", "requested"),
    I: ("started", "requested"),
    A: ("finished", "requested"),
    S: ("finished", "requested"),
    E: ("requested", "requested"),
}
STAGED_COUNTS = {W: (0, 0), P: (1, 1), R: (1, 1), I: (1, 1), A: (1, 0), S: (1, 0), E: (0, 1)}


def staged(state: State, **changes: object) -> Outcome:
    """The chat as `stage.py` leaves it, so what an outcome starts from."""
    attempt, crashes = STAGED_COUNTS[state.status]
    before = Outcome(
        status=state.status,
        queue=("queued 0", "queued 1") if state.queued else (),
        calls=STAGED_CALLS[state.status],
        attempt=attempt,
        crashes=crashes,
        archived=state.archived,
    )
    return replace(before, **changes)  # type: ignore[arg-type]  # the fields of Outcome


def closed(state: State, reason: str) -> Outcome:
    """Every open call is answered for whoever did not, and the results stand in history."""
    if state.status is W:
        return staged(state)
    first = {
        P: f"call-1!{reason}",
        E: f"call-1!{reason}",
        I: f"call-1!{reason}, started",
        A: "call-1=found call-1",
        S: "call-1=found call-1",
    }[state.status]
    return staged(
        state,
        history=(f"tool: {first} call-2!{reason}",),
        calls=("unknown settled", "finished settled") if state.status is I else SETTLED,
        abandoned=("task-2",),
        attempt=0,
    )


def began(outcome: Outcome, head: str, queue: tuple[str, ...]) -> Outcome:
    """A user's message enters history and opens a turn: one, whatever the queue still holds."""
    return replace(
        outcome,
        status=P,
        history=(*outcome.history, f"user: {head}"),
        queue=queue,
        opened="message",
        dispatched=True,
        attempt=0,
        crashes=0,
    )


def next_or_rest(outcome: Outcome) -> Outcome:
    """The head of the queue begins, or it is the user's turn."""
    if outcome.queue:
        return began(outcome, outcome.queue[0], outcome.queue[1:])
    return replace(outcome, status=W)


def stopped(state: State, reason: str, queue: tuple[str, ...] | None = None) -> Outcome:
    """A chat without an owner is stopped at once."""
    over = replace(closed(state, reason), ended="interrupted")
    return next_or_rest(over if queue is None else replace(over, queue=queue))


def send(state: State) -> Outcome:
    if state.status in (W, E):
        before = closed(state, "superseded")
        head, *rest = (*before.queue, "new")
        return replace(began(before, head, tuple(rest)), answers="new")
    return staged(state, queue=(*staged(state).queue, "new"), answers="new")


def send_interrupt(state: State) -> Outcome:
    queue = (*staged(state).queue, "new")
    match state.status:
        case Status.WAITING | Status.ERROR | Status.INTERRUPTING:
            return send(state)
        case Status.RUNNING:
            return replace(send(state), status=I, hint=Cause.INTERRUPT)
    after = stopped(state, "superseded", queue)
    return replace(after, answers="new", through_queue=not state.queued)


def edit(state: State) -> Outcome:
    calls = tuple(
        "unknown settled" if was == "started" else "finished settled" for was in staged(state).calls
    )
    after = staged(
        state,
        deleted=True,
        calls=calls,
        abandoned=("task-2",) if calls else (),
        ended=None if state.status in (W, E) else "cancelled",
        cancelled=len(staged(state).queue),
        hint=Cause.LEASE_LOST if state.status in (R, I) else None,
        also=(EventKind.HISTORY_RESET,),
    )
    return began(after, "new", ())


def interrupt(state: State) -> Outcome:
    if state.status is R:
        return staged(state, status=I, hint=Cause.INTERRUPT)
    return stopped(state, "interrupted")


def promote_queued(state: State) -> Outcome:
    queue = ("queued 1", "queued 0")
    match state.status:
        case Status.RUNNING:
            after = staged(state, status=I, hint=Cause.INTERRUPT, queue=queue)
        case Status.INTERRUPTING:
            after = staged(state, queue=queue)
        case Status.ERROR:
            after = began(closed(state, "superseded"), "queued 1", ("queued 0",))
        case _:
            after = stopped(state, "superseded", queue)
    return replace(after, answers="queued 1")


def delete_queued(state: State) -> Outcome:
    return staged(state, queue=("queued 0",), cancelled=1)


def runnable(state: State, **changes: object) -> Outcome:
    """The same turn goes on."""
    return staged(state, status=P, dispatched=True, **changes)


def submit_results(state: State) -> Outcome:
    return runnable(
        state,
        history=("tool: call-1=found call-1 call-2=found call-2",),
        calls=SETTLED,
        attempt=0,
    )


def request_compaction(state: State) -> Outcome:
    return replace(
        closed(state, "superseded"),
        status=P,
        opened="compaction",
        dispatched=True,
        attempt=0,
        crashes=0,
    )


def retry(state: State) -> Outcome:
    return runnable(state, opened="retry", attempt=0, crashes=0)


def record(state: State) -> Outcome:
    history = ("assistant: Let me look. [call-3]",)
    return staged(state, history=history, calls=("started",), attempt=0, steps=1)


def store_compaction(state: State) -> Outcome:
    history = ("user: summary", "assistant: compacted")
    also = (EventKind.COMPACTION,)
    return runnable(state, history=history, calls=(), attempt=0, crashes=0, also=also)


def finish_turn(state: State) -> Outcome:
    over = staged(
        state,
        history=("assistant: Done.",),
        ended="finished",
        calls=(),
        attempt=0,
        crashes=0,
        steps=1,
    )
    return next_or_rest(over)


def retry_later(state: State) -> Outcome:
    return runnable(state, attempt=2, delay=60, also=(EventKind.RETRY,))


def require_action(state: State) -> Outcome:
    calls = ("finished", "requested")
    return staged(state, status=A, calls=calls, crashes=0, also=(EventKind.ACTION_REQUIRED,))


def release(state: State) -> Outcome:
    return stopped(state, "interrupted") if state.status is I else runnable(state)


def finish_interrupt(state: State) -> Outcome:
    over = closed(state, "interrupted")
    partial = (*over.history, "assistant: I was about to")  # after the results of its own calls
    return next_or_rest(replace(over, history=partial, ended="interrupted", steps=1))


def wake(state: State) -> Outcome:
    if state.status is S:
        return submit_results(state)
    first = "started" if state.status is I else "requested"  # in A: a client call, for this row
    return staged(state, calls=(first, "finished"))


def expire(state: State) -> Outcome:
    return replace(closed(state, "timed out"), status=P, dispatched=True)


def recover(state: State) -> Outcome:
    return stopped(state, "interrupted") if state.status is I else runnable(state, crashes=2)


EXPECTED: dict[Transition, Callable[[State], Outcome]] = {
    Transition.SEND: send,
    Transition.SEND_INTERRUPT: send_interrupt,
    Transition.SEND_STEER: send,  # with calls open, it has to wait too; see test_steering
    Transition.SEND_REJECT: send,
    Transition.EDIT: edit,
    Transition.INTERRUPT: interrupt,
    Transition.PROMOTE_QUEUED: promote_queued,
    Transition.DELETE_QUEUED: delete_queued,
    Transition.SUBMIT_RESULTS: submit_results,
    Transition.APPROVE: lambda state: replace(
        submit_results(state), history=("tool: call-1=found call-1 call-2!denied",)
    ),
    Transition.REQUEST_COMPACTION: request_compaction,
    Transition.RETRY: retry,
    Transition.ARCHIVE: lambda state: staged(state, archived=True),
    Transition.UNARCHIVE: lambda state: staged(state, archived=False),
    Transition.SET_BUDGET: lambda state: staged(state, also=(EventKind.BUDGET,)),
    Transition.SET_TITLE: lambda state: staged(state, also=(EventKind.TITLE,)),
    Transition.SET_LABELS: lambda state: staged(state, also=(EventKind.LABELS,)),
    Transition.CLAIM: lambda state: staged(state, status=R),
    Transition.RECORD: record,
    Transition.START_TOOLS: lambda state: staged(state, calls=("started", "requested")),
    Transition.COMMIT: lambda state: replace(submit_results(state), crashes=0),
    Transition.STORE_COMPACTION: store_compaction,
    Transition.FINISH_TURN: finish_turn,
    Transition.RETRY_LATER: retry_later,
    Transition.REQUIRE_ACTION: require_action,
    Transition.EXCEED_BUDGET: lambda state: staged(
        state, status=A, calls=(), crashes=0, also=(EventKind.ACTION_REQUIRED,)
    ),
    Transition.SLEEP: lambda state: replace(require_action(state), status=S, also=()),
    Transition.FAIL: lambda state: staged(state, status=E, ended="failed", attempt=0),
    Transition.RELEASE: release,
    Transition.FINISH_INTERRUPT: finish_interrupt,
    Transition.WAKE: wake,
    Transition.EXPIRE: expire,
    Transition.RECOVER: recover,
    Transition.RECONCILE: staged,
}
