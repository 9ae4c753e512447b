"""Reading: what a step or a reader needs to know, in as few queries as possible.

Nothing here locks or writes. `prompt_history` is what the model is shown.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy import CompoundSelect, Row, bindparam, func, literal, select, union_all
from sqlalchemy.orm import Session

from models.base import table_of
from models.tables import Message
from rejoinder.core.messages import Role, Visibility

Shown: TypeAlias = Row[Any]
"""A message as the model is shown it: these columns."""
_M = table_of(Message).c
_COLUMNS = (
    _M.id,
    _M.role,
    _M.parts,
    _M.model,
    _M.stop_reason,
    _M.compressed,
    _M.input_tokens,
    _M.cache_read_tokens,
    _M.cache_write_tokens,
)


def _query() -> CompoundSelect[Any]:
    """Everything since the newest compaction boundary, and the system messages before it.

    One statement, three index scans: messages_boundary for the boundary, messages_system and
    messages_pkey for the rows. Its cost is what it returns, however long the chat is.
    """
    boundary = (
        select(func.coalesce(func.max(_M.id), literal(0)))
        .where(
            _M.chat_id == bindparam("chat_id"),
            _M.compressed,
            _M.visibility == Visibility.MODEL,
            ~_M.deleted,
        )
        .scalar_subquery()
    )
    visible = (
        _M.chat_id == bindparam("chat_id"),
        ~_M.deleted,
        _M.visibility != Visibility.USER,
    )
    system = select(*_COLUMNS).where(
        *visible,
        _M.role == Role.SYSTEM,
        ~_M.compressed,
        _M.id < boundary,
    )
    since = select(*_COLUMNS).where(*visible, _M.id >= boundary)
    return union_all(system, since)


_QUERY = _query()


def prompt_history(tx: Session, chat_id: UUID) -> Sequence[Shown]:
    """The messages that the model is shown, in order."""
    rows = tx.execute(_QUERY, {"chat_id": chat_id})
    return sorted(rows, key=lambda message: message.id)  # they come in order, or nearly
