"""History, queue and turns under the chat's lock.

Messages get their id, and so their place, while the lock is held: two writers can never disagree
about the order. Nothing here decides a status; the transitions in `by_*.py` do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any
from uuid import UUID

from sqlalchemy import Uuid, and_, bindparam, func, or_, select, text, update
from uuid_utils.compat import uuid7

from models.base import table_of
from models.machine.change import Change
from models.machine.one_statement import CALLS
from models.machine.unlocked import Unlocked
from models.tables import Message, Turn
from models.types import AnyText, Content, as_json, escaped, plain
from rejoinder.core import parts
from rejoinder.core.effects import Event, EventKind, TurnEnd
from rejoinder.core.messages import Failure, NewMessage, Role, TurnKind, TurnState, Usage
from rejoinder.core.money import dollars
from rejoinder.core.parts import Json

_APPEND = text("""
WITH m AS (
    INSERT INTO rejoinder.messages
           (chat_id, turn_id, role, visibility, compressed, revision, parts, model, context_limit,
            runtime_ms, stop_reason, request_id, cost_micros, input_tokens, output_tokens,
            cache_read_tokens, cache_write_tokens, reasoning_tokens)
    VALUES (:chat_id, :turn_id, :role, :visibility, :compressed, :revision, :parts, :model,
            :context_limit, :runtime_ms, :stop_reason, :request_id, :cost_micros, :input_tokens,
            :output_tokens, :cache_read_tokens, :cache_write_tokens, :reasoning_tokens)
    RETURNING id, created_at
), t AS (
    UPDATE rejoinder.turns SET steps = steps + 1 WHERE :is_step AND id = :turn_id
), k AS (
    INSERT INTO rejoinder.tool_calls
           (chat_id, message_id, call_id, name, arguments, kind, delivery, external_id, approval,
            patience, default_answer, waits_for, state, started_at)
    SELECT :chat_id, m.id, c.call_id, c.name, c.arguments, c.kind, c.delivery, c.external_id,
           c.approval, c.patience, c.default_answer, CAST(c.waits_for AS uuid[]), c.state,
           c.started_at
      FROM m, unnest(
           CAST(:call_id AS text[]), CAST(:name AS text[]), CAST(:arguments AS json[]),
           CAST(:kind AS text[]), CAST(:delivery AS text[]), CAST(:external_id AS text[]),
           CAST(:approval AS text[]), CAST(:patience AS double precision[]),
           CAST(:default_answer AS json[]), CAST(:waits_for AS text[]), CAST(:state AS text[]),
           CAST(:started_at AS timestamptz[]))
           AS c(call_id, name, arguments, kind, delivery, external_id, approval, patience,
                default_answer, waits_for, state, started_at)
)
SELECT id, created_at FROM m
""").bindparams(
    bindparam("chat_id", type_=Uuid),
    bindparam("turn_id", type_=Uuid),
    bindparam("parts", type_=Content),
    bindparam("request_id", type_=AnyText),
)
"""The message, the step that it was, and the calls it holds: one round trip.

Calls come as arrays: Postgres' functions that take JSON apart cannot read all that we store.
"""
_OF_CALLS = tuple(CALLS)
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
        "is_step": is_step,
        **{name: [call[name] for call in calls] for name in _OF_CALLS},
    }
    if change.unlocked is not None:
        message_id, created_at = change.unlocked.append(message), change.now
        _note(change.unlocked, message_id, given)
    else:
        row = change.tx.execute(_APPEND, given).one()
        message_id, created_at = int(row.id), row.created_at
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
                "created_at": created_at.isoformat(),
            },
        )
    )
    return message_id


def _note(unlocked: Unlocked, message_id: int, given: dict[str, Any]) -> None:
    """Have the same written with the rest of the transition."""
    calls = {name: given.pop(name) for name in _OF_CALLS}
    if given.pop("is_step"):
        unlocked.add("turn_step")
    if calls["call_id"]:
        unlocked.add("new_calls", **calls)
    given |= {"parts": as_json(given["parts"]), "id": message_id}
    given["request_id"] = given["request_id"] and escaped(given["request_id"])
    unlocked.add("message", **given)


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
    if message is None or (message.model is None and message.usage == Usage()):
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
        change.tx.execute(
            update(Turn)
            .where(Turn.id == turn_id)
            .values(state=TurnState.OPEN, message_id=message_id)
        )
    elif change.unlocked is not None:
        change.unlocked.add("new_turn", id=turn_id, kind=kind, message_id=message_id)
    else:
        values = {"id": turn_id, "chat_id": change.chat.id, "kind": kind, "message_id": message_id}
        change.tx.execute(_NEW_TURN, {**values, "state": TurnState.OPEN})
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
    if change.unlocked is not None:
        step = change.unlocked.parts.pop("turn_step", None)
        change.unlocked.add(
            "turn_end",
            id=turn_id,
            steps=0 if step is None else 1,
            state=state,
            ended_at=change.now,
            answer_id=answer_id,
            error=error and as_json(error),
        )
        change.ended.append(TurnEnd(turn_id, state, answer_id, text, error))
        return  # who had joined it is known once it is written
    joined = and_(Turn.joined_id == turn_id, Turn.state == TurnState.JOINED)
    over = change.tx.scalars(
        update(Turn)
        .where(or_(Turn.id == turn_id, joined))
        .values(state=state, ended_at=change.now, answer_id=answer_id, error=error)
        .returning(Turn.id)
        .execution_options(synchronize_session=False)
    ).all()
    for each in sorted(over, key=lambda each: each != turn_id):
        change.ended.append(TurnEnd(each, state, answer_id, text, error))


def is_open(change: Change, turn_id: UUID | None) -> bool:
    """Whether this is the open turn, or one that has joined it. None stands for any."""
    if turn_id in (None, change.chat.turn_id):
        return True
    turn = change.tx.get(Turn, turn_id, populate_existing=True)
    return bool(turn and turn.state is TurnState.JOINED and turn.joined_id == change.chat.turn_id)


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
