"""reconcile: an operator's way out of a combination of rows that should not exist.

Guards keep a single row honest; this looks across tables too. A chat that is consistent
stays as it is. One that is not becomes `error`, with what was found in `last_error`, its queue
recounted and its open calls answered, so that a user can go on with it.
"""

from uuid import UUID

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from models.machine import calls, queue
from models.machine.change import Change, begin
from models.tables import QueuedMessage, Turn
from rejoinder.core.effects import Cause, Effects, TurnEnd
from rejoinder.core.limits import MAX_QUEUED
from rejoinder.core.messages import ActionKind, Failure, TurnState
from rejoinder.core.state import AT_REST, LEASED, PARKED, Status, Transition, possible


def reconcile(tx: Session, chat_id: UUID) -> Effects:
    """reconcile: impossible → error; possible → no change."""
    change = begin(tx, chat_id, Transition.RECONCILE)
    open_calls = calls.unsettled(change)
    queued = tx.scalars(select(func.count()).where(QueuedMessage.chat_id == chat_id)).one()
    going = (TurnState.OPEN, TurnState.JOINED)
    turns = tx.execute(
        select(Turn.id, Turn.state, Turn.joined_id).where(
            Turn.chat_id == chat_id, Turn.state.in_(going)
        )
    ).all()
    over = [turn.id for turn in turns]
    open_turns = [turn.id for turn in turns if turn.state is TurnState.OPEN]
    astray = [turn.id for turn in turns if turn.joined_id and turn.joined_id not in open_turns]
    found = [
        *_wrong_columns(change, queued),
        *_wrong_calls(change, open_calls),
        *(["the open turn is not the chat's turn"] if _turn_wrong(change, open_turns) else []),
        *(["a turn has joined one that is over"] if astray else []),
    ]
    if not found:
        return change.nothing()
    failure = Failure(
        "reconciled",
        "The chat's stored state was inconsistent and has been repaired.",
        detail="; ".join(found),
        retryable=True,
    )
    change.tell_owner(Cause.LEASE_LOST)
    calls.close(change, open_calls, calls.SUPERSEDED)
    calls.settle(change, open_calls)
    change.chat.queue_length = queued
    change.queue_changed = True
    surplus = (
        select(QueuedMessage)
        .where(QueuedMessage.chat_id == chat_id)
        .order_by(QueuedMessage.position)
        .offset(MAX_QUEUED)
    )
    for message in tx.scalars(surplus).all():
        queue.remove_queued(change, message)
    change.chat.woken = False
    change.chat.attempt = 0
    change.chat.retry_state = None
    tx.execute(
        update(Turn)
        .where(Turn.id.in_(over))
        .values(state=TurnState.FAILED, ended_at=change.now, error=failure.to_json())
        .execution_options(synchronize_session=False)
    )
    change.ended.extend(
        TurnEnd(turn_id, TurnState.FAILED, error=failure.to_json()) for turn_id in over
    )
    change.to(Status.ERROR, failure=failure)
    return change.effects()


def _wrong_columns(change: Change, queued: int) -> list[str]:
    chat = change.chat
    wrong = {
        "queue_length differs from the queue": chat.queue_length != queued,
        "too many queued messages": queued > MAX_QUEUED,
        f"{chat.status} cannot be archived": chat.archived and chat.status not in AT_REST,
        f"{chat.status} cannot have a queue": not possible(
            chat.status, queued=bool(queued), archived=False
        ),
        "the lease does not fit the status": (chat.lease_id is not None) != (chat.status in LEASED)
        or (chat.lease_id is None) != (chat.worker_id is None),
        "the deadline does not fit the status": (chat.deadline is not None)
        != (chat.status in PARKED),
        "last_error does not fit the status": (chat.last_error is not None)
        != (chat.status is Status.ERROR),
        "the turn does not fit the status": (chat.turn_id is None) != (chat.status in AT_REST),
        "redispatch_at does not fit the status": (chat.redispatch_at is not None)
        != (chat.status is Status.PENDING),
        "run_after does not fit the status": chat.run_after is not None
        and chat.status is not Status.PENDING,
        "woken does not fit the status": chat.woken and chat.status in AT_REST | {Status.SLEEPING},
        "retry_state does not fit the attempt": (chat.retry_state is None) != (chat.attempt == 0),
        "an attempt though nothing is tried": chat.attempt > 0 and chat.status in AT_REST,
    }
    return [what for what, is_wrong in wrong.items() if is_wrong]


def _wrong_calls(change: Change, open_calls: calls.Calls) -> list[str]:
    match change.chat.status:
        case Status.WAITING if open_calls:
            return ["tool calls are open although it is the user's turn"]
        case Status.REQUIRES_ACTION if change.chat.action is ActionKind.BUDGET:
            return ["it waits for its budget, with open calls"] if open_calls else []
        case Status.REQUIRES_ACTION if not calls.asking(open_calls):
            return ["it requires action but asks for nothing"]
        case Status.SLEEPING if not calls.elsewhere(open_calls):
            return ["it sleeps but no outside call is open"]
    return []


def _turn_wrong(change: Change, open_turns: list[UUID]) -> bool:
    expected = [] if change.chat.status in AT_REST else [change.chat.turn_id]
    return open_turns != expected
