"""History, queue and turns under the chat's lock.

Messages get their id, and so their place, while the lock is held: two writers can never disagree
about the order. Nothing here decides a status; the transitions in `by_*.py` do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any
from uuid import UUID

from sqlalchemy import func, select, update
from uuid_utils.compat import uuid7

from models.base import table_of
from models.machine.change import Change
from models.tables import Message, Turn
from models.types import plain
from rejoinder.core import parts
from rejoinder.core.effects import Event, EventKind, TurnEnd
from rejoinder.core.messages import Failure, NewMessage, Role, TurnKind, TurnState, Usage
from rejoinder.core.money import dollars
from rejoinder.core.parts import Json

_NEW_TURN = table_of(Turn).insert()


def append(
    change: Change,
    message: NewMessage,
    turn_id: UUID | None = None,
    *,
    is_step: bool = False,
    calls: Sequence[Mapping[str, object]] = (),
) -> int:
    """Add a message at the end of history, with the rows of its calls."""
    stored = parts.dump(message.parts)
    turn_id = turn_id or change.chat.turn_id
    given: dict[str, Any] = {
        "chat_id": change.chat.id,
        "turn_id": turn_id,
        "role": message.role,
        "visibility": message.visibility,
        "compressed": message.compressed,
        "revision": change.version,
        "parts": stored,
        "model": message.model and plain("The model", message.model),
        "context_limit": message.context_limit,
        "runtime_ms": message.runtime_ms,
        "stop_reason": message.stop_reason,
        "request_id": message.request_id,
        "cost_micros": message.cost_micros,
        **vars(message.usage),
    }
    message_id, created_at = change.store.append(message, given, calls, is_step=is_step)
    change.touch_history()
    change.message_ids.append(message_id)
    change.events.append(
        Event(
            EventKind.MESSAGE,
            {
                "id": message_id,
                "turn_id": str(turn_id) if turn_id else None,
                "role": message.role,
                "visibility": message.visibility,
                "parts": stored,
                "model": message.model,
                "usage": cost_of(message),
                "created_at": (created_at or change.now).isoformat(),
            },
        )
    )
    return message_id


def cost_of(message: NewMessage | Message) -> dict[str, Json]:
    """What a message took, as readers see it: tokens by kind, time and money, as far as known."""
    counted = message.usage if isinstance(message, NewMessage) else message
    told = {
        **{each.name: getattr(counted, each.name) for each in fields(Usage)},
        "runtime_ms": message.runtime_ms,
        "cost_micros": message.cost_micros,
    }
    if message.cost_micros is not None:
        told["cost"] = dollars(message.cost_micros)
    return {name: value for name, value in told.items() if value is not None}


def count(change: Change, message: NewMessage | None) -> None:
    """Add what a model call took to what the chat has used. A notice of ours is no call."""
    if message is None or message.counted or (message.model is None and message.usage == Usage()):
        return
    chat, usage = change.chat, message.usage
    chat.used_calls += 1
    chat.used_input += usage.input_tokens or 0
    chat.used_output += usage.output_tokens or 0
    chat.used_cache_read += usage.cache_read_tokens or 0
    chat.used_cache_write += usage.cache_write_tokens or 0
    chat.used_reasoning += usage.reasoning_tokens or 0
    chat.used_micros += message.cost_micros or 0
    chat.used_unpriced += message.cost_micros is None
    chat.used_ms += message.runtime_ms or 0


def count_lost(change: Change, message: NewMessage | None) -> None:
    """Add a call whose answer is not kept: it was paid for, but nobody had anything of its time."""
    count(change, message and replace(message, runtime_ms=None))


def generated(
    change: Change, message: NewMessage, calls: Sequence[Mapping[str, object]] = ()
) -> int:
    """Add what the model produced, and its calls; it counts as a step of the turn."""
    message_id = append(change, message, is_step=True, calls=calls)
    count(change, message)
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
        change.store.session.execute(
            update(Turn)
            .where(Turn.id == turn_id)
            .values(state=TurnState.OPEN, message_id=message_id)
        )
    else:
        values = {"id": turn_id, "chat_id": change.chat.id, "kind": kind, "message_id": message_id}
        change.store.session.execute(_NEW_TURN, {**values, "state": TurnState.OPEN})
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
    over = change.store.end_turn(
        turn_id, state=state, ended_at=change.now, answer_id=answer_id, error=error
    )
    change.ended.extend(TurnEnd(each, state, answer_id, text, error) for each in over)


def is_open(change: Change, turn_id: UUID | None) -> bool:
    """Whether this is the open turn, or one that has joined it. None stands for any."""
    if turn_id in (None, change.chat.turn_id):
        return True
    turn = change.store.session.get(Turn, turn_id, populate_existing=True)
    return bool(turn and turn.state is TurnState.JOINED and turn.joined_id == change.chat.turn_id)


def last_answer(change: Change) -> tuple[int, str] | None:
    """The last assistant message of the open turn that a person can read."""
    opened = select(Turn.message_id).where(Turn.id == change.chat.turn_id)
    rows = change.store.session.execute(
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
