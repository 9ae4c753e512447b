"""The transitions of those who watch: the sweeper, a dead worker's parent, callbacks, operators.

They act for somebody who cannot: an owner that died, a deadline nobody met, a child or another
app's task that has finished. Finding the chats is `models/claims.py`.
"""

from uuid import UUID

from sqlalchemy.orm import Session

from models.machine import calls, history, queue
from models.machine.by_worker import finish_stopped
from models.machine.change import begin
from rejoinder.core.effects import Effects
from rejoinder.core.errors import Stale
from rejoinder.core.limits import MAX_CRASHES
from rejoinder.core.messages import ActionKind, CallKind, Failure, NewMessage, TurnState
from rejoinder.core.parts import ToolResult
from rejoinder.core.state import AT_REST, LEASED, Status, Transition

WORKER_LOST = Failure(
    kind="worker_lost",
    message=f"The worker died {MAX_CRASHES} times in a row while working on this chat.",
    detail="Something in this chat may be killing its workers (memory, a native crash in a tool).",
    retryable=True,
)


OVER_BUDGET = Failure(
    kind="budget",
    message="The budget of this chat is used up, and nobody raised it in time.",
    detail="Raise it with set_budget, then retry.",
    retryable=True,
)


def recover(
    tx: Session, chat_id: UUID, lease_id: UUID, *, partial: NewMessage | None = None
) -> Effects:
    """recover: the owner of this lease is dead; the chat is runnable again, or given up."""
    change = begin(tx, chat_id, Transition.RECOVER)
    chat = change.chat
    if chat.lease_id != lease_id:
        raise Stale(f"Chat {chat_id} has another owner by now", "leave, and write nothing")
    if change.before is Status.INTERRUPTING:
        finish_stopped(change, partial)
        return change.effects()
    open_calls = calls.unsettled(change)
    calls.drop_started(change, open_calls)
    calls.settle(change, open_calls)
    chat.crashes += 1
    if chat.crashes >= MAX_CRASHES:
        history.end_turn(change, TurnState.FAILED, failure=WORKER_LOST)
        change.to(Status.ERROR, failure=WORKER_LOST)
    else:
        queue.go_on(change)
    return change.effects()


def expire(tx: Session, chat_id: UUID) -> Effects:
    """expire: parked past its deadline → pending; the model learns that nobody answered.

    Each call has its own deadline: while others have time, the chat stays parked. A call that waits
    for children is not answered here: the step looks at them, and sees that the time is up.
    """
    change = begin(tx, chat_id, Transition.EXPIRE)
    chat = change.chat
    if chat.deadline is None or chat.deadline > change.now:
        raise Stale(f"The deadline of chat {chat_id} has not passed", "leave, and write nothing")
    if change.before is Status.REQUIRES_ACTION and chat.action is ActionKind.BUDGET:
        history.end_turn(change, TurnState.FAILED, failure=OVER_BUDGET)
        change.to(Status.ERROR, failure=OVER_BUDGET)
        return change.effects()
    open_calls = calls.unsettled(change)
    late = [
        call
        for call in calls.unanswered(open_calls)
        if call.deadline is not None and call.deadline <= change.now
    ]
    looks = [call for call in calls.elsewhere(late) if call.kind is CallKind.CHILDREN]
    calls.overdue(change, [call for call in late if call not in looks])
    calls.settle(change, open_calls)
    asking = chat.status is Status.REQUIRES_ACTION
    left = calls.asking(open_calls) if asking else calls.elsewhere(open_calls)
    if left and not looks and (later := [call.deadline for call in left if call.deadline]):
        change.to(chat.status, deadline=min(later), action=chat.action)
        if asking:
            calls.ask(change, left)
    else:
        queue.go_on(change)
    return change.effects()


def wake(
    tx: Session,
    chat_id: UUID,
    result: ToolResult | None = None,
    *,
    external_id: str | None = None,
) -> Effects:
    """wake: sleeping → pending; with a result, once no other outside call is open.

    A wake-up that comes before the chat's `sleep` is kept for it, on the call or as `woken`; a
    repeated one, or one that nobody waits for any more, changes nothing. `external_id` says whose
    result it is: models reuse call ids, and an abandoned task's answer must not fit a later call.
    """
    change = begin(tx, chat_id, Transition.WAKE)
    if change.unchanged:
        return change.nothing()
    open_calls = calls.unsettled(change)
    outside = calls.elsewhere(open_calls)
    waiting = {call.call_id for call in outside}
    meant = {
        call.call_id
        for call in outside
        if call.kind is CallKind.EXTERNAL and external_id in (None, call.external_id)
    }
    if result is not None and result.call_id in meant:
        calls.answer(change, open_calls, [result])
    elif result is not None or change.before in AT_REST:
        return change.nothing()
    if change.before not in LEASED:  # history is the owner's while there is one
        calls.settle(change, open_calls)
    if change.before is Status.PENDING:
        queue.join(change)  # the next step begins with all calls answered
    if change.before is Status.SLEEPING:
        if result is None or waiting == {result.call_id}:
            queue.go_on(change)
    elif result is None:
        change.chat.woken = True
    return change.effects()
