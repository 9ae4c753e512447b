"""Reading: what a step or a reader needs to know, in as few queries as possible.

Nothing here locks or writes. `prompt_history` is what the model is shown.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy import CompoundSelect, Row, bindparam, func, literal, select, union_all
from sqlalchemy.orm import Session

from models.tables import Message
from rejoinder.core.messages import Role, Visibility

Shown: TypeAlias = "Row[Any]"
"""A message as the model is shown it: these columns."""
_COLUMNS = (
    Message.id,
    Message.role,
    Message.parts,
    Message.model,
    Message.stop_reason,
    Message.compressed,
    Message.input_tokens,
    Message.cache_read_tokens,
    Message.cache_write_tokens,
)


def _query() -> CompoundSelect[Any]:
    """Everything since the newest compaction boundary, and the system messages before it.

    One statement, three index scans: messages_boundary for the boundary, messages_system and
    messages_pkey for the rows. Its cost is what it returns, however long the chat is.
    """
    boundary = (
        select(func.coalesce(func.max(Message.id), literal(0)))
        .where(
            Message.chat_id == bindparam("chat_id"),
            Message.compressed,
            Message.visibility == Visibility.MODEL,
            ~Message.deleted,
        )
        .scalar_subquery()
    )
    visible = (
        Message.chat_id == bindparam("chat_id"),
        ~Message.deleted,
        Message.visibility != Visibility.USER,
    )
    system = select(*_COLUMNS).where(
        *visible,
        Message.role == Role.SYSTEM,
        ~Message.compressed,
        Message.id < boundary,
    )
    since = select(*_COLUMNS).where(*visible, Message.id >= boundary)
    return union_all(system, since)


_QUERY = _query()


def prompt_history(tx: Session, chat_id: UUID) -> Sequence[Shown]:
    """The messages that the model is shown, in order."""
    rows = tx.execute(_QUERY, {"chat_id": chat_id})
    return sorted(rows, key=lambda message: message.id)  # they come in order, or nearly
