"""Statements that Postgres plans once for each connection: the few that every step executes.

To plan one of these takes longer than to execute it. Each connection prepares a statement when it
first needs it, under a name that says what is in it. Behind a pooler that lends another connection
for each transaction (PgBouncer) a prepared statement may not be there the next time: whoever finds
that goes on without, for this engine.
"""

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any
from weakref import WeakSet

from psycopg2.errors import (
    DuplicatePreparedStatement,
    FeatureNotSupported,
    InvalidSqlStatementName,
)
from sqlalchemy import Dialect, Engine
from sqlalchemy.exc import DBAPIError, NotSupportedError

from models.engine import Execute, quickly

_OUTDATED = (FeatureNotSupported, NotSupportedError)
"""As the driver tells it, and as SQLAlchemy does: "cached plan must not change result type"."""
_NAME = re.compile(r"%\((\w+)\)s")
_plain: WeakSet[Dialect] = WeakSet()
"""Of engines that cannot keep prepared statements."""


class Prepared:
    """One statement, with parameters as psycopg2 names them."""

    def __init__(self, sql: str) -> None:
        """Give each parameter its number."""
        self._sql = sql
        names = list(dict.fromkeys(_NAME.findall(sql)))
        self._name = f"rejoinder_{sha256(sql.encode()).hexdigest()[:16]}"
        numbered = _NAME.sub(lambda found: f"${names.index(found[1]) + 1}", sql)
        self._prepare = f"PREPARE {self._name} AS {numbered}".replace("%%", "%")
        given = ", ".join(f"%({name})s" for name in names)
        self._execute = f"EXECUTE {self._name} ({given})"

    def one(self, engine: Engine, given: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """Execute it as a transaction of its own; the row that it returns, if any."""
        if engine.dialect not in _plain:
            try:
                with quickly(engine) as (execute, noted):
                    return self._prepared(execute, noted, given)
            except DBAPIError as error:
                if not isinstance(error.orig, DuplicatePreparedStatement | InvalidSqlStatementName):
                    raise
                _plain.add(engine.dialect)
        with quickly(engine) as (execute, _):
            return execute(self._sql, given)

    def _prepared(
        self, execute: Execute, noted: dict[Any, Any], given: Mapping[str, Any]
    ) -> tuple[Any, ...] | None:
        ready: set[str] = noted.setdefault("prepared", set())
        if self._name in ready:
            try:
                return execute(self._execute, given)
            except _OUTDATED:  # a migration has changed what it returns; nothing was executed
                ready.discard(self._name)
                execute(f"DEALLOCATE {self._name}", {})
        execute(self._prepare, {})
        ready.add(self._name)
        return execute(self._execute, given)
