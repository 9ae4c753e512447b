"""Messages that wait: for a turn of their own, or to join the one that runs.

First come, first served; one is promoted per turn, in the transaction that ends the one before.
Nothing here decides a status but the two moves at the end of every turn or step, `rest_or_next` and
`go_on`.
"""

from collections.abc import Iterator
from uuid import UUID

from sqlalchemy import delete, exists, func, insert, or_, select, update
from uuid_utils.compat import uuid7

from models.machine.change import Change
from models.machine.history import append, open_turn
from models.tables import Message, QueuedMessage, ToolCallRow, Turn
from rejoinder.core import parts
from rejoinder.core.effects import TurnEnd
from rejoinder.core.errors import Rejected
from rejoinder.core.limits import MAX_QUEUED
from rejoinder.core.messages import NewMessage, Role, TurnKind, TurnState
from rejoinder.core.model import StopReason
from rejoinder.core.state import Status


def enqueue(
    change: Change, message: NewMessage, turn_id: UUID | None = None, *, steer: bool = False
) -> tuple[int, UUID]:
    """Put a user's message at the end of the queue, with a turn of its own to wait for."""
    chat = change.chat
    if chat.queue_length >= MAX_QUEUED:
        raise Rejected(
            f"The chat has {MAX_QUEUED} queued messages already",
            "wait until it has caught up, or delete some of them",
        )
    turn_id = turn_id or uuid7()
    change.store.session.execute(
        insert(Turn).values(
            id=turn_id, chat_id=chat.id, kind=TurnKind.MESSAGE, state=TurnState.QUEUED
        )
    )
    last = select(func.coalesce(func.max(QueuedMessage.position), 0) + 1).where(
        QueuedMessage.chat_id == chat.id
    )
    queued_id, created_at = change.store.session.execute(
        insert(QueuedMessage)
        .values(
            chat_id=chat.id,
            turn_id=turn_id,
            position=last.scalar_subquery(),
            parts=parts.dump(message.parts),
            model=message.model,
            steer=steer,
        )
        .returning(QueuedMessage.id, QueuedMessage.created_at)
    ).one()
    _queue_changed(change, +1)
    change.queued.append(
        {
            "id": queued_id,
            "turn_id": str(turn_id),
            "parts": parts.dump(message.parts),
            "model": message.model,
            "steer": steer,
            "created_at": created_at.isoformat(),
        }
    )
    return queued_id, turn_id


def go_on(change: Change) -> None:
    """The same turn is runnable again; messages that were to steer it join it first."""
    join(change)
    change.to(Status.PENDING)


def join(change: Change) -> bool:
    """Let messages that are to steer the open turn join it now, if they can; say whether any did.

    Only once every call is answered: a user never speaks between a call and its result, nor between
    the two halves of an answer that a provider has paused. And not a turn that only compacts: it
    answers nobody.
    """
    if not change.chat.queue_length or not _can_be_steered(change):
        return False
    joined = list(_take_steering(change))
    for message_id, turn_id in joined:
        change.store.session.execute(
            update(Turn)
            .where(Turn.id == turn_id)
            .values(state=TurnState.JOINED, message_id=message_id, joined_id=change.chat.turn_id)
            .execution_options(synchronize_session=False)
        )
    return bool(joined)


def _take_steering(change: Change) -> Iterator[tuple[int, UUID]]:
    rows = change.store.session.execute(
        delete(QueuedMessage)
        .where(QueuedMessage.chat_id == change.chat.id, QueuedMessage.steer)
        .returning(
            QueuedMessage.position,
            QueuedMessage.turn_id,
            QueuedMessage.parts,
            QueuedMessage.model,
        )
        .execution_options(synchronize_session=False)
    ).all()
    for row in sorted(rows, key=lambda row: row.position):
        _queue_changed(change, -1)
        message = NewMessage(Role.USER, parts.load(row.parts), model=row.model)
        if row.model:
            change.chat.model = row.model
        yield append(change, message, row.turn_id), row.turn_id


def _can_be_steered(change: Change) -> bool:
    change.flush()
    chat_id = change.chat.id
    waits = exists().where(ToolCallRow.chat_id == chat_id, ~ToolCallRow.settled)
    last = select(func.max(Message.id)).where(Message.chat_id == chat_id, ~Message.deleted)
    paused = exists().where(
        Message.chat_id == chat_id,
        Message.id == last.scalar_subquery(),
        Message.stop_reason == StopReason.PAUSE,
    )
    kind, waiting = change.store.session.execute(
        select(Turn.kind, or_(waits, paused)).where(Turn.id == change.chat.turn_id)
    ).one()
    return kind is not TurnKind.COMPACTION and not waiting


def queued(change: Change, queued_id: int) -> QueuedMessage:
    """One queued message of this chat."""
    found = change.store.session.scalars(
        select(QueuedMessage).where(
            QueuedMessage.id == queued_id, QueuedMessage.chat_id == change.chat.id
        )
    ).one_or_none()
    if found is None:
        raise Rejected(
            f"Message {queued_id} is not in the queue of this chat",
            "it was promoted or deleted already; read the queue again",
        )
    return found


def move_to_front(change: Change, message: QueuedMessage) -> None:
    """Make a queued message the next one."""
    first = change.store.session.scalar(
        select(func.min(QueuedMessage.position)).where(QueuedMessage.chat_id == change.chat.id)
    )
    if first is not None and message.position != first:
        change.store.session.execute(
            update(QueuedMessage)
            .where(QueuedMessage.id == message.id)
            .values(position=first - 1)
            .execution_options(synchronize_session=False)
        )
        _queue_changed(change, 0)


def promote_head(change: Change) -> UUID:
    """Turn the queue's head into the user's next message. The old turn must be over."""
    head = (
        select(QueuedMessage.id)
        .where(QueuedMessage.chat_id == change.chat.id)
        .order_by(QueuedMessage.position)
        .limit(1)
    )
    row = change.store.session.execute(
        delete(QueuedMessage)
        .where(QueuedMessage.id == head.scalar_subquery())
        .returning(QueuedMessage.turn_id, QueuedMessage.parts, QueuedMessage.model)
        .execution_options(synchronize_session=False)
    ).one()
    _queue_changed(change, -1)
    message = NewMessage(Role.USER, parts.load(row.parts), model=row.model)
    message_id = append(change, message, row.turn_id)
    if row.model:
        change.chat.model = row.model
    return open_turn(
        change, TurnKind.MESSAGE, turn_id=row.turn_id, message_id=message_id, queued=True
    )


def remove_queued(change: Change, message: QueuedMessage) -> None:
    """Delete one queued message; whoever waits for its turn is told."""
    _cancel_turns(change, [message.turn_id])
    change.store.session.execute(
        delete(QueuedMessage)
        .where(QueuedMessage.id == message.id)
        .execution_options(synchronize_session=False)
    )
    _queue_changed(change, -1)


def clear_queue(change: Change) -> None:
    """Delete all queued messages."""
    if not change.chat.queue_length:
        return
    turn_ids = change.store.session.scalars(
        delete(QueuedMessage)
        .where(QueuedMessage.chat_id == change.chat.id)
        .returning(QueuedMessage.turn_id)
        .execution_options(synchronize_session=False)
    ).all()
    _cancel_turns(change, list(turn_ids))
    _queue_changed(change, -change.chat.queue_length)


def rest_or_next(change: Change) -> None:
    """The user's turn, or, if messages are queued, the next one begins. The old turn is over."""
    if change.chat.queue_length:
        promote_head(change)
        change.to(Status.PENDING)
    else:
        change.to(Status.WAITING)


def _cancel_turns(change: Change, turn_ids: list[UUID]) -> None:
    change.store.session.execute(
        update(Turn)
        .where(Turn.id.in_(turn_ids))
        .values(state=TurnState.CANCELLED, ended_at=change.now)
        .execution_options(synchronize_session=False)
    )
    change.ended.extend(TurnEnd(turn_id, TurnState.CANCELLED) for turn_id in turn_ids)


def _queue_changed(change: Change, by: int) -> None:
    change.chat.queue_length += by
    change.queue_changed = True
