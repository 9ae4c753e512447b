"""History, queue and turns under the chat's lock.

Messages get their id, and so their place, while the lock is held: two writers can never disagree
about the order. Nothing here decides a status; the transitions in `by_*.py` do.
"""

from uuid import UUID

from sqlalchemy import delete, func, insert, select, update
from uuid_utils.compat import uuid7

from models.machine.change import Change
from models.tables import Message, QueuedMessage, Turn
from models.types import plain
from rejoinder.core import parts
from rejoinder.core.effects import Event, EventKind, TurnEnd
from rejoinder.core.errors import Rejected
from rejoinder.core.limits import MAX_QUEUED
from rejoinder.core.messages import Failure, NewMessage, Role, TurnKind, TurnState
from rejoinder.core.state import Status


def append(change: Change, message: NewMessage, turn_id: UUID | None = None) -> int:
    """Add a message at the end of history."""
    stored = parts.dump(message.parts)
    message_id: int = change.tx.execute(
        insert(Message)
        .values(
            chat_id=change.chat.id,
            turn_id=turn_id or change.chat.turn_id,
            role=message.role,
            visibility=message.visibility,
            compressed=message.compressed,
            revision=change.version,
            parts=stored,
            model=message.model and plain("The model", message.model),
            context_limit=message.context_limit,
            runtime_ms=message.runtime_ms,
            stop_reason=message.stop_reason,
            request_id=message.request_id,
            **vars(message.usage),
        )
        .returning(Message.id)
    ).scalar_one()
    change.touch_history()
    change.message_ids.append(message_id)
    change.events.append(
        Event(
            EventKind.MESSAGE,
            {
                "id": message_id,
                "role": message.role,
                "visibility": message.visibility,
                "parts": stored,
            },
        )
    )
    return message_id


def generated(change: Change, message: NewMessage) -> int:
    """Add what the model produced; it counts as a step of the turn."""
    message_id = append(change, message)
    change.tx.execute(
        update(Turn).where(Turn.id == change.chat.turn_id).values(steps=Turn.steps + 1)
    )
    return message_id


def open_turn(
    change: Change,
    kind: TurnKind,
    *,
    turn_id: UUID | None = None,
    message_id: int | None = None,
    queued: bool = False,
) -> UUID:
    """Begin a turn, or let a queued one begin. The one before it must be over."""
    turn_id = turn_id or uuid7()
    if queued:
        change.tx.execute(
            update(Turn)
            .where(Turn.id == turn_id)
            .values(state=TurnState.OPEN, message_id=message_id)
        )
    else:
        change.tx.execute(
            insert(Turn).values(
                id=turn_id,
                chat_id=change.chat.id,
                kind=kind,
                state=TurnState.OPEN,
                message_id=message_id,
            )
        )
    change.chat.turn_id = turn_id
    change.chat.woken = False
    change.chat.crashes = 0
    change.chat.attempt = 0
    change.chat.retry_state = None
    return turn_id


def end_turn(
    change: Change,
    state: TurnState,
    *,
    answer: tuple[int, str] | None = None,
    failure: Failure | None = None,
) -> None:
    """Close the open turn, if there is one. `answer` is its message and that message's text."""
    turn_id = change.chat.turn_id
    if turn_id is None:
        return
    change.chat.woken = False
    error = failure.to_json() if failure else None
    answer_id, text = answer or (None, None)
    change.tx.execute(
        update(Turn)
        .where(Turn.id == turn_id)
        .values(state=state, ended_at=change.now, answer_id=answer_id, error=error)
    )
    change.ended.append(TurnEnd(turn_id, state, answer_id, text, error))


def last_answer(change: Change) -> tuple[int, str] | None:
    """The last assistant message of the open turn that a person can read."""
    opened = select(Turn.message_id).where(Turn.id == change.chat.turn_id)
    rows = change.tx.execute(
        select(Message.id, Message.parts)
        .where(
            Message.chat_id == change.chat.id,
            # Not before the message that opened the turn: a long history is not searched.
            Message.id >= func.coalesce(opened.scalar_subquery(), 0),
            Message.turn_id == change.chat.turn_id,
            Message.role == Role.ASSISTANT,
            ~Message.compressed,
            ~Message.deleted,
        )
        .order_by(Message.id.desc())
        .limit(1)
    ).one_or_none()
    return (rows.id, parts.text_of(parts.load(rows.parts))) if rows else None


def say(change: Change, message: NewMessage, turn_id: UUID | None = None) -> UUID:
    """Let a user's message open a turn. Every call must be answered and the old turn over."""
    turn_id = turn_id or uuid7()
    message_id = append(change, message, turn_id)
    if message.model:
        change.chat.model = message.model
    return open_turn(change, TurnKind.MESSAGE, turn_id=turn_id, message_id=message_id)


def enqueue(change: Change, message: NewMessage, turn_id: UUID | None = None) -> tuple[int, UUID]:
    """Put a user's message at the end of the queue, with a turn of its own to wait for."""
    chat = change.chat
    if chat.queue_length >= MAX_QUEUED:
        raise Rejected(
            f"The chat has {MAX_QUEUED} queued messages already",
            "wait until it has caught up, or delete some of them",
        )
    turn_id = turn_id or uuid7()
    change.tx.execute(
        insert(Turn).values(
            id=turn_id, chat_id=chat.id, kind=TurnKind.MESSAGE, state=TurnState.QUEUED
        )
    )
    last = select(func.coalesce(func.max(QueuedMessage.position), 0) + 1).where(
        QueuedMessage.chat_id == chat.id
    )
    queued_id: int = change.tx.execute(
        insert(QueuedMessage)
        .values(
            chat_id=chat.id,
            turn_id=turn_id,
            position=last.scalar_subquery(),
            parts=parts.dump(message.parts),
            model=message.model,
        )
        .returning(QueuedMessage.id)
    ).scalar_one()
    _queue_changed(change, +1)
    return queued_id, turn_id


def queued(change: Change, queued_id: int) -> QueuedMessage:
    """One queued message of this chat."""
    found = change.tx.scalars(
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
    first = change.tx.scalar(
        select(func.min(QueuedMessage.position)).where(QueuedMessage.chat_id == change.chat.id)
    )
    if first is not None and message.position != first:
        change.tx.execute(
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
    row = change.tx.execute(
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
    change.tx.execute(
        delete(QueuedMessage)
        .where(QueuedMessage.id == message.id)
        .execution_options(synchronize_session=False)
    )
    _queue_changed(change, -1)


def clear_queue(change: Change) -> None:
    """Delete all queued messages."""
    if not change.chat.queue_length:
        return
    turn_ids = change.tx.scalars(
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
    change.tx.execute(
        update(Turn)
        .where(Turn.id.in_(turn_ids))
        .values(state=TurnState.CANCELLED, ended_at=change.now)
        .execution_options(synchronize_session=False)
    )
    change.ended.extend(TurnEnd(turn_id, TurnState.CANCELLED) for turn_id in turn_ids)


def _queue_changed(change: Change, by: int) -> None:
    change.chat.queue_length += by
    change.queue_changed = True
