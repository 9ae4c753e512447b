"""Statements that Postgres plans once for each connection: the few that every step executes.

To plan one of these takes longer than to execute it. Each connection prepares a statement when it
first needs it, under a name that says what is in it. Behind a pooler that lends another connection
for each transaction (PgBouncer) a prepared statement may not be there the next time: whoever finds
that goes on without, for this engine.
"""

import re
from hashlib import sha256
from typing import Any

from psycopg2.errors import DuplicatePreparedStatement, InvalidSqlStatementName
from sqlalchemy import Connection, Engine, Row
from sqlalchemy.exc import DBAPIError, NotSupportedError

from models.engine import at_once, autocommit

_NAME = re.compile(r"%\((\w+)\)s")


class Prepared:
    """One statement, with parameters as psycopg2 names them."""

    def __init__(self, sql: str) -> None:
        """Give each parameter its number."""
        self._sql = sql
        names = list(dict.fromkeys(_NAME.findall(sql)))
        self._name = f"rejoinder_{sha256(sql.encode()).hexdigest()[:16]}"
        numbered = _NAME.sub(lambda found: f"${names.index(found[1]) + 1}", sql)
        self._prepare = f"PREPARE {self._name} AS {numbered}"
        given = ", ".join(f"%({name})s" for name in names)
        self._execute = f"EXECUTE {self._name} ({given})"

    def one(self, engine: Engine, given: dict[str, Any]) -> Row[Any] | None:
        """Execute it as a transaction of its own; the row that it returns, if any."""
        with at_once(engine) as connection:
            if connection.get_execution_options()["prepare"]:
                try:
                    return self._prepared(connection, given)
                except DBAPIError as error:
                    forgotten = DuplicatePreparedStatement | InvalidSqlStatementName
                    if not isinstance(error.orig, forgotten):
                        raise
                    autocommit(engine).update_execution_options(prepare=False)
            return connection.exec_driver_sql(self._sql, given).first()

    def _prepared(self, connection: Connection, given: dict[str, Any]) -> Row[Any] | None:
        ready: set[str] = connection.info.setdefault("prepared", set())
        if self._name in ready:
            try:
                return connection.exec_driver_sql(self._execute, given).first()
            except NotSupportedError:  # a migration has changed what it returns; nothing was done
                ready.discard(self._name)
                connection.exec_driver_sql(f"DEALLOCATE {self._name}")
        connection.exec_driver_sql(self._prepare)
        ready.add(self._name)
        return connection.exec_driver_sql(self._execute, given).first()
