"""What a step needs to know of its chat, in two statements; more only where there is more to know.

Read after the claim: the rows cannot change under the lease except by an edit or a stop, which the
fence and the cancellation deal with, and by answers from outside, for which the next step looks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy import bindparam, exists, func, select
from sqlalchemy.orm import Session

from models import trees
from models.base import table_of
from models.history import Shown, prompt_history
from models.machine.calls import looked_at
from models.machine.claim import Around, around
from models.tables import Chat, ToolCallRow, Turn
from rejoinder.core import parts
from rejoinder.core.decide import Call, Entry, Snapshot
from rejoinder.core.messages import Budget, NewMessage, Role, TitleSource, Usage, Used
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
        *_CHATS.c,
        _TURNS.c.kind.label("turn_kind"),
        _TURNS.c.steps.label("turn_steps"),
        _ROOTS.c.budget_tokens.label("tree_tokens"),
        _ROOTS.c.budget_micros.label("tree_micros"),
        exists().where(_CALLS.c.chat_id == _CHATS.c.id, ~_CALLS.c.settled).label("has_calls"),
        func.statement_timestamp().label("now"),
    )
    .select_from(_CHATS)
    .join(_TURNS, _TURNS.c.id == bindparam("turn_id"))
    .join(_ROOTS, _ROOTS.c.id == _CHATS.c.root_id)
    .where(_CHATS.c.id == bindparam("chat_id"))
)
"""Indexes: chats_pkey (twice), turns_pkey, tool_calls_open."""


Seen: TypeAlias = tuple[Mapping[str, Any], Around]
"""A chat's row, and what stands around it."""


def is_all(seen: Seen) -> bool:
    """Whether nothing but history is missing: no open calls, no chat above, no budget."""
    chat, beside = seen
    return not beside.has_calls and chat["parent_id"] is None and beside.budget == Budget()


def look(tx: Session, chat_id: UUID, turn_id: UUID) -> Seen:
    """The chat's row and what stands around it, if the claim did not tell."""
    row = tx.execute(_LOOK, {"chat_id": chat_id, "turn_id": turn_id}).one()
    return dict(zip(row._fields, row, strict=True)), around(row)


def load(
    tx: Session,
    chat_id: UUID,
    turn_id: UUID,
    seen: Seen | None = None,
    history: Sequence[Entry] | None = None,
) -> Loaded:
    """Read the chat, its history since the newest boundary, and its open calls.

    `seen` is what the claim has told, `history` what this process still has of it.
    """
    seen = seen or look(tx, chat_id, turn_id)
    chat, beside = seen
    if history is None:
        history = tuple(entry(message) for message in prompt_history(tx, chat_id))
    calls = looked_at(tx, chat_id) if beside.has_calls else ()
    loaded = put_together(chat_id, turn_id, seen, history, [_call(c, beside.now) for c in calls])
    depth = trees.depth_of(tx, chat_id, chat["parent_id"])
    used = trees.used(tx, chat["root_id"]) if beside.budget != Budget() else Used()
    return replace(loaded, depth=depth, used=used)


def put_together(
    chat_id: UUID,
    turn_id: UUID,
    seen: Seen,
    history: Sequence[Entry],
    calls: Sequence[Call] = (),
) -> Loaded:
    """A chat without a budget and without chats above it, as a step sees it."""
    chat, beside = seen
    return Loaded(
        chat_id=chat_id,
        turn_id=turn_id,
        owner=chat["owner"],
        model=chat["model"],
        options=ChatOptions.load(chat["options"]),
        depth=0,
        title_source=chat["title_source"],
        budget=beside.budget,
        used=Used(),
        snapshot=Snapshot(
            turn_kind=beside.turn_kind,
            steps=beside.steps,
            history=tuple(history),
            calls=tuple(calls),
            attempt=chat["attempt"],
        ),
    )


def entry(message: Shown) -> Entry:
    """A row of history as a value."""
    return Entry(
        id=message.id,
        role=Role(message.role),
        parts=parts.load(message.parts),
        model=message.model,
        stop=message.stop_reason,
        context_tokens=_context_tokens(message),
        compressed=message.compressed,
    )


def added(message_id: int, message: NewMessage) -> Entry:
    """A message that was just stored, as it will be read."""
    return Entry(
        id=message_id,
        role=message.role,
        parts=parts.load(parts.dump(message.parts)),
        model=message.model,
        stop=message.stop_reason,
        context_tokens=_context_tokens(message.usage),
        compressed=message.compressed,
    )


def _context_tokens(counted: Shown | Usage) -> int | None:
    """Everything that the model had read."""
    used = (counted.input_tokens, counted.cache_read_tokens, counted.cache_write_tokens)
    return sum(n or 0 for n in used) if any(used) else None


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
