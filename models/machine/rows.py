"""Rows that a transition has read under its lock, as plain values that know what was changed.

What an ORM does, without what it costs: these are the few rows that every step reads and writes,
and each is written once, by one statement that names the columns that differ.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from sqlalchemy import Table, Update, bindparam, update
from sqlalchemy.orm import Session


class Row:
    """One row: its columns are its attributes."""

    def read(self, values: Mapping[str, Any]) -> None:
        """Take the values as they are stored."""
        self.__dict__.update(values)
        self.__dict__["_stored"] = dict(values)

    def changes(self) -> dict[str, Any]:
        """What differs from what is stored; it counts as stored from now on."""
        now, stored = self.__dict__, self.__dict__["_stored"]
        changed = {
            name: now[name]
            for name, value in stored.items()
            if now[name] is not value and now[name] != value
        }
        stored.update(changed)
        return changed


def store(tx: Session, table: Table, row: Row) -> None:
    """Write what was changed, if anything."""
    if changed := row.changes():
        given = {f"new_{name}": value for name, value in changed.items()}
        tx.execute(_update(table, tuple(changed)), {"row_id": row.__dict__["id"], **given})


@cache
def _update(table: Table, columns: tuple[str, ...]) -> Update:
    """The statement that writes these columns: to put it together takes longer than to run it."""
    values: dict[str, Any] = {name: bindparam(f"new_{name}") for name in columns}
    return update(table).where(table.c.id == bindparam("row_id")).values(values)
