"""The transitions of those who watch: the sweeper, a dead worker's parent, callbacks, operators.

They act for somebody who cannot: an owner that died, a deadline nobody met, a child or another
app's task that has finished. Finding the chats is `models/claims.py`.
"""

from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from models import steps
from models.machine import calls, history, partials, queue
from models.machine.by_worker import finish_stopped
from models.machine.change import Change, begin
from models.tables import Chat
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
    """recover: the owner of this lease is dead; the chat is runnable again, or given up.

    `partial` is what its readers had seen: a stop saves it, now or before the next claim.
    """
    change = begin(tx, chat_id, Transition.RECOVER)
    chat = change.chat
    if chat.lease_id != lease_id:
        raise Stale(f"Chat {chat_id} has another owner by now", "leave, and write nothing")
    steps.lost(tx, chat_id)
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
        partials.keep(change, partial)
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
    waited_for = calls.asking if chat.status is Status.REQUIRES_ACTION else calls.elsewhere
    late = [
        call  # one without a deadline was parked by an earlier release: the chat's counts
        for call in waited_for(open_calls)
        if (call.deadline or chat.deadline) <= change.now
    ]
    children = [call for call in calls.elsewhere(late) if call.kind is CallKind.CHILDREN]
    calls.overdue(change, [call for call in late if call not in children])
    calls.settle(change, open_calls)
    left = waited_for(open_calls)
    if left and not children:
        deadline = min(call.deadline or chat.deadline for call in left)
        change.to(chat.status, deadline=deadline, action=chat.action)
        if chat.status is Status.REQUIRES_ACTION:
            calls.ask(change, left)  # fewer than before
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
    Without a result it is a child that has come to rest: a chat that waits for others as well
    sleeps on, for the last one's word comes after that one's commit, and finds all at rest.
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
    elif result is not None or change.before in AT_REST or _waits_for_others(change, open_calls):
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


def _waits_for_others(change: Change, open_calls: calls.Calls) -> bool:
    """Whether it sleeps for children, and each of its calls for one that is still busy."""
    awaited = [call for call in calls.elsewhere(open_calls) if call.kind is CallKind.CHILDREN]
    if change.before is not Status.SLEEPING or not awaited:
        return False
    named = [each for call in awaited for each in call.waits_for or ()]
    busy = set(
        change.store.session.scalars(
            select(Chat.id).where(Chat.id.in_(named), Chat.status.not_in(AT_REST))
        )
    )
    return all(busy.intersection(call.waits_for or ()) for call in awaited)
