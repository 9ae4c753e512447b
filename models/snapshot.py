"""What a step needs to know of its chat, in two statements; more only where there is more to know.

Read after the claim: the rows cannot change under the lease except by an edit or a stop, which the
fence and the cancellation deal with, and by answers from outside, for which the next step looks.
"""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import bindparam, exists, func, select
from sqlalchemy.orm import Session

from models import trees
from models.base import table_of
from models.history import Shown, prompt_history
from models.machine.calls import looked_at
from models.tables import Chat, ToolCallRow, Turn
from rejoinder.core import parts
from rejoinder.core.decide import Call, Entry, Snapshot
from rejoinder.core.messages import Budget, TitleSource, Used
from rejoinder.core.options import ChatOptions


@dataclass(frozen=True)
class Loaded:
    """A chat as a step sees it."""

    chat_id: UUID
    turn_id: UUID
    owner: str
    model: str
    options: ChatOptions
    depth: int
    """How many chats are above it."""
    title_source: TitleSource
    budget: Budget
    used: Used
    """What its tree has used; zero where there is no budget."""
    snapshot: Snapshot


_CHATS, _TURNS, _CALLS = table_of(Chat), table_of(Turn), table_of(ToolCallRow)
_ROOTS = _CHATS.alias("root")
_LOOK = (
    select(
        _CHATS.c.owner,
        _CHATS.c.model,
        _CHATS.c.options,
        _CHATS.c.parent_id,
        _CHATS.c.root_id,
        _CHATS.c.title_source,
        _CHATS.c.attempt,
        _TURNS.c.kind,
        _TURNS.c.steps,
        _ROOTS.c.budget_tokens,
        _ROOTS.c.budget_micros,
        exists().where(_CALLS.c.chat_id == _CHATS.c.id, ~_CALLS.c.settled).label("has_calls"),
        func.statement_timestamp().label("now"),
    )
    .select_from(_CHATS)
    .join(_TURNS, _TURNS.c.id == bindparam("turn_id"))
    .join(_ROOTS, _ROOTS.c.id == _CHATS.c.root_id)
    .where(_CHATS.c.id == bindparam("chat_id"))
)
"""Indexes: chats_pkey (twice), turns_pkey, tool_calls_open."""


def load(tx: Session, chat_id: UUID, turn_id: UUID) -> Loaded:
    """Read the chat, its history since the newest boundary, and its open calls."""
    chat = tx.execute(_LOOK, {"chat_id": chat_id, "turn_id": turn_id}).one()
    budget = Budget(chat.budget_tokens, chat.budget_micros)
    return Loaded(
        chat_id=chat_id,
        turn_id=turn_id,
        owner=chat.owner,
        model=chat.model,
        options=ChatOptions.load(chat.options),
        depth=trees.depth_of(tx, chat_id, chat.parent_id),
        title_source=chat.title_source,
        budget=budget,
        used=trees.used(tx, chat.root_id) if budget != Budget() else Used(),
        snapshot=Snapshot(
            turn_kind=chat.kind,
            steps=chat.steps,
            history=tuple(entry(message) for message in prompt_history(tx, chat_id)),
            calls=tuple(_call(row, chat.now) for row in looked_at(tx, chat_id))
            if chat.has_calls
            else (),
            attempt=chat.attempt,
        ),
    )


def entry(message: Shown) -> Entry:
    """A row of history as a value."""
    used = (message.input_tokens, message.cache_read_tokens, message.cache_write_tokens)
    return Entry(
        id=message.id,
        role=message.role,
        parts=parts.load(message.parts),
        model=message.model,
        stop=message.stop_reason,
        context_tokens=sum(n or 0 for n in used) if any(used) else None,
        compressed=message.compressed,
    )


def _call(row: ToolCallRow, now: datetime) -> Call:
    return Call(
        row.call_id,
        row.name,
        row.arguments,
        row.kind,
        row.state,
        row.external_id,
        row.approval,
        tuple(row.waits_for or ()),
        overdue=row.deadline is not None and row.deadline <= now,
    )
