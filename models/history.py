"""Reading: what a step or a reader needs to know, in as few queries as possible.

Nothing here locks or writes. `prompt_history` is what the model is shown.
"""

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy import CompoundSelect, Row, bindparam, func, literal, select, union_all
from sqlalchemy.orm import Session

from models.base import table_of
from models.tables import Message
from rejoinder.core.messages import Role, Visibility

Shown: TypeAlias = "Row[Any] | SimpleNamespace"
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


_NAMES = tuple(column.name for column in _COLUMNS)
_OWN = ", ".join(f"m.{name}" for name in _NAMES)
_VISIBLE = "m.chat_id = c.id AND NOT m.deleted AND m.visibility <> 'user'"
MOST_ALONG = 100
"""Messages that are read along with a claim: one value holds them all, so it should not be huge."""
ALONG = f"""(
    SELECT CAST(json_agg(json_build_array({_OWN})) AS text)
      FROM (SELECT COALESCE(max(b.id), 0) AS id FROM rejoinder.messages AS b
             WHERE b.chat_id = c.id AND b.compressed AND b.visibility = 'model' AND NOT b.deleted
           ) AS boundary,
           LATERAL (
               (SELECT {_OWN} FROM rejoinder.messages AS m
                 WHERE {_VISIBLE} AND m.role = 'system' AND NOT m.compressed AND m.id < boundary.id
                 LIMIT {MOST_ALONG + 1})
               UNION ALL
               (SELECT {_OWN} FROM rejoinder.messages AS m
                 WHERE {_VISIBLE} AND m.id >= boundary.id LIMIT {MOST_ALONG + 1})
           ) AS m
)"""  # noqa: S608  # names of our own columns
"""The same for the chat `c`, as one value. As text: what cannot be read fails nobody's claim."""


def read_along(told: str | None) -> Sequence[Shown] | None:
    """What `ALONG` has told; None: it has to be read."""
    if told is None:
        return None
    try:
        rows = json.loads(told)
    except (ValueError, RecursionError):
        return None  # whoever reads it the other way finds out what it is
    if len(rows) > MOST_ALONG:
        return None
    shown = (SimpleNamespace(**dict(zip(_NAMES, row, strict=True))) for row in rows)
    return sorted(shown, key=lambda message: message.id)


def prompt_history(tx: Session, chat_id: UUID) -> Sequence[Shown]:
    """The messages that the model is shown, in order."""
    rows = tx.execute(_QUERY, {"chat_id": chat_id})
    return sorted(rows, key=lambda message: message.id)  # they come in order, or nearly
