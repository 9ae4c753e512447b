"""Reading a chat's tree: how deep a chat is in it, what the tree has used, what it may use.

No locks but one: sums over a tree are right up to calls that are under way.
"""

from uuid import UUID

from sqlalchemy import func, or_, select, text
from sqlalchemy.orm import Session

from models.tables import Chat
from rejoinder.core.messages import Budget, Used

_DEPTH = text("""
WITH RECURSIVE above AS (
    SELECT c.parent_id, 1 AS depth FROM rejoinder.chats AS c WHERE c.id = :chat_id
    UNION ALL
    SELECT c.parent_id, above.depth + 1
      FROM above JOIN rejoinder.chats AS c ON c.id = above.parent_id
)
SELECT max(depth) - 1 FROM above
""")


def depth_of(tx: Session, chat: Chat) -> int:
    """How many chats are above this one. Index: chats_pkey; nothing is read for a root."""
    if chat.parent_id is None:
        return 0
    return int(tx.execute(_DEPTH, {"chat_id": chat.id}).scalar_one())


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
