"""Reading a chat's tree: who is in it, how they are, what it has used, what it may use.

No locks but one: sums over a tree are right up to calls that are under way. What changes a tree is
`machine/trees.py` and `machine/agents.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Uuid, func, or_, select, text
from sqlalchemy.orm import Session

from models.tables import Chat, Message
from models.types import AnyText, Content
from rejoinder.core import parts
from rejoinder.core.messages import Budget, Role, Used
from rejoinder.core.parts import Json, Part
from rejoinder.core.state import AT_REST, Status

_DEPTH = text("""
WITH RECURSIVE above AS (
    SELECT c.parent_id, 1 AS depth FROM rejoinder.chats AS c WHERE c.id = :chat_id
    UNION ALL
    SELECT c.parent_id, above.depth + 1
      FROM above JOIN rejoinder.chats AS c ON c.id = above.parent_id
)
SELECT max(depth) - 1 FROM above
""")


def depth_of(tx: Session, chat_id: UUID, parent_id: UUID | None) -> int:
    """How many chats are above this one. Index: chats_pkey; nothing is read for a root."""
    if parent_id is None:
        return 0
    return int(tx.execute(_DEPTH, {"chat_id": chat_id}).scalar_one())


def parent_of(tx: Session, chat_id: UUID) -> UUID | None:
    """The chat above."""
    return tx.scalars(select(Chat.parent_id).where(Chat.id == chat_id)).one_or_none()


def budget_of(tx: Session, chat: Chat) -> Budget:
    """What the chat's tree may use: its root says so."""
    if chat.parent_id is None:
        return Budget(chat.budget_tokens, chat.budget_micros)
    tokens, micros = tx.execute(
        select(Chat.budget_tokens, Chat.budget_micros).where(Chat.id == chat.root_id)
    ).one()
    return Budget(tokens, micros)


def lock_budget(tx: Session, chat_id: UUID) -> Budget:
    """What the chat's tree may use, and goes on to until this transaction ends."""
    root_id = select(Chat.root_id).where(Chat.id == chat_id).scalar_subquery()
    found = tx.execute(
        select(Chat.budget_tokens, Chat.budget_micros)
        .where(Chat.id == root_id)
        .with_for_update(key_share=True)
    ).one_or_none()
    return Budget(*found) if found else Budget()


def used(tx: Session, root_id: UUID) -> Used:
    """What a whole tree has used. Indexes: chats_pkey, chats_tree."""
    names = ("calls", "input", "output", "cache_read", "cache_write", "reasoning")
    sums = [func.coalesce(func.sum(getattr(Chat, f"used_{name}")), 0) for name in names]
    rest = [
        func.coalesce(func.sum(column), 0)
        for column in (Chat.used_micros, Chat.used_unpriced, Chat.used_ms)
    ]
    in_tree = or_(Chat.id == root_id, (Chat.root_id == root_id) & Chat.parent_id.is_not(None))
    row = tx.execute(select(*sums, *rest).where(in_tree)).one()
    return Used(*(int(value) for value in row))


@dataclass(frozen=True)
class Below:
    """A chat somewhere below another, as the one above may see it."""

    chat_id: UUID
    title: str
    status: Status
    archived: bool
    last_error: Mapping[str, Json] | None
    interrupted: bool
    """Whether its last turn was stopped."""

    @property
    def at_rest(self) -> bool:
        """Whether nobody works on it."""
        return self.status in AT_REST


# UNION, not UNION ALL: a circle of parents, which no code of ours can make, ends the walk too.
_BELOW = text("""
WITH RECURSIVE above AS (
    SELECT c.id, c.parent_id FROM rejoinder.chats AS c WHERE c.id = ANY(CAST(:ids AS uuid[]))
    UNION
    SELECT above.id, c.parent_id FROM above JOIN rejoinder.chats AS c ON c.id = above.parent_id
)
SELECT DISTINCT above.id FROM above WHERE above.parent_id = :top AND above.id <> :top
""")

_LOOK = text("""
SELECT c.id, c.title, c.status, c.archived, c.last_error, coalesce(t.state, '') = 'interrupted' AS
       interrupted
  FROM rejoinder.chats AS c
  LEFT JOIN LATERAL (
       SELECT t.state FROM rejoinder.turns AS t
        WHERE t.chat_id = c.id AND t.ended_at IS NOT NULL
        ORDER BY t.ended_at DESC LIMIT 1) AS t ON true
 WHERE c.id = ANY(CAST(:ids AS uuid[]))
""").columns(id=Uuid, title=AnyText, last_error=Content)

_SAID = text("""
SELECT c.id, m.parts
  FROM unnest(CAST(:ids AS uuid[])) AS c(id)
 CROSS JOIN LATERAL (
       SELECT m.id, m.parts FROM rejoinder.messages AS m
        WHERE m.chat_id = c.id AND m.role = 'assistant' AND m.visibility <> 'model'
          AND NOT m.deleted AND NOT m.compressed
        ORDER BY m.id DESC LIMIT :most) AS m
 ORDER BY m.id DESC
""").columns(id=Uuid, parts=Content)

_MOST_SAID = 30
"""Messages of a chat in which its last words are looked for: most of them only call tools."""


def below(tx: Session, top: UUID, ids: Sequence[UUID]) -> set[UUID]:
    """Those of these chats that are below `top`: walks up from each. Index: chats_pkey."""
    given = {"top": top, "ids": [str(each) for each in ids]}
    return set(tx.scalars(_BELOW.columns(id=Uuid), given))


def look(tx: Session, ids: Sequence[UUID]) -> dict[UUID, Below]:
    """How these chats are; one that is gone is not among them. Indexes: chats_pkey, turns_chat."""
    rows = tx.execute(_LOOK, {"ids": [str(each) for each in ids]})
    return {
        row.id: Below(
            row.id, row.title, Status(row.status), row.archived, row.last_error, row.interrupted
        )
        for row in rows
    }


def last_words(tx: Session, ids: Sequence[UUID]) -> dict[UUID, str]:
    """What each of these chats said last that people can read. Index: messages_pkey."""
    said: dict[UUID, str] = {}
    for row in tx.execute(_SAID, {"ids": [str(each) for each in ids], "most": _MOST_SAID}):
        if row.id not in said and (words := parts.text_of(parts.load(row.parts)).strip()):
            said[row.id] = words
    return said


def children(tx: Session, chat_id: UUID, *, limit: int, offset: int = 0) -> tuple[list[UUID], int]:
    """A page of a chat's own children, the last to move first, and how many there are.

    Index: chats_children; a chat has few.
    """
    own = (Chat.parent_id == chat_id, ~Chat.archived)
    page = select(Chat.id).where(*own).order_by(Chat.updated_at.desc(), Chat.id)
    total = tx.scalars(select(func.count()).select_from(Chat).where(*own)).one()
    return list(tx.scalars(page.limit(limit).offset(offset))), total


def busy_children(tx: Session, chat_id: UUID) -> int:
    """How many of a chat's own children are at work. Index: chats_children."""
    busy = (Chat.parent_id == chat_id, Chat.status.not_in(AT_REST))
    return tx.scalars(select(func.count()).select_from(Chat).where(*busy)).one()


def size(tx: Session, root_id: UUID) -> int:
    """How many chats a tree has, its root included. Index: chats_tree."""
    others = (Chat.root_id == root_id, Chat.parent_id.is_not(None))
    return 1 + tx.scalars(select(func.count()).select_from(Chat).where(*others)).one()


def instructions(tx: Session, chat_id: UUID) -> tuple[Part, ...]:
    """What a chat's system messages say. Index: messages_system."""
    rows = tx.execute(
        select(Message.id, Message.parts).where(
            Message.chat_id == chat_id,
            Message.role == Role.SYSTEM,
            ~Message.compressed,
            ~Message.deleted,
        )
    )
    in_order = sorted(rows, key=lambda row: row.id)
    return tuple(part for row in in_order for part in parts.load(row.parts))
