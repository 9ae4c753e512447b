"""Connections to Postgres, set up one way for everybody.

`make_engine` is the only place that creates an engine; `transaction` is the only way the machine's
functions are run: commit or nothing. Neither ever publishes; `Effects` are the caller's to publish
once `transaction` has ended.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, cast

import psycopg2
from sqlalchemy import Connection, Engine, ExceptionContext, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError, InvalidatePoolError
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection, QueuePool

from models.db_errors import leads_nowhere
from models.types import as_json
from rejoinder.core.errors import Refused
from rejoinder.core.limits import IDLE_IN_TRANSACTION_MS, LOCK_TIMEOUT_MS

PING_AFTER_SECONDS = 1.0
"""A connection that was used less long ago is taken to be one."""


def _refuse_plainly(context: ExceptionContext) -> None:
    # A refusal from inside a statement's parameters stays what it is, instead of being wrapped.
    if isinstance(context.original_exception, Refused):
        raise context.original_exception


def _drop_after_failover(context: ExceptionContext) -> None:
    # SQLAlchemy then invalidates this connection and the pool's others of the same age.
    if leads_nowhere(context.original_exception):
        context.is_disconnect = True


def make_engine(url: str, **options: Any) -> Engine:  # SQLAlchemy's own options
    """Create an engine for this database; connections are made when first needed."""
    limits = (
        f"-c lock_timeout={LOCK_TIMEOUT_MS}"
        f" -c idle_in_transaction_session_timeout={IDLE_IN_TRANSACTION_MS}"
        # What the machine relies on: after a wait for a lock, the next statement sees what is new.
        r" -c default_transaction_isolation=read\ committed"
    )
    connect = {
        "application_name": "rejoinder",
        "options": limits,
        # A server that vanished without a word is noticed in seconds, not in a quarter of an hour.
        "connect_timeout": 5,
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": 10_000,
    } | options.pop("connect_args", {})
    defaults: dict[str, Any] = {
        "json_serializer": as_json,
        "connect_args": connect,
        "pool_reset_on_return": None,  # `_reset` does it, where there is something to undo
    }
    engine = create_engine(url, **defaults | options)
    event.listen(engine, "handle_error", _refuse_plainly)
    event.listen(engine, "handle_error", _drop_after_failover)
    event.listen(engine, "reset", _reset)
    event.listen(engine, "checkin", _used)
    event.listen(engine, "checkout", partial(_ready, engine))
    engine.update_execution_options(at_hand=_AtHand(engine))
    return engine


class _Wish(threading.local):
    """What the thread that is being given a connection wants it for."""

    at_once = False
    """Statements that are transactions of their own."""


_wish = _Wish()


def _reset(dbapi: Any, _: ConnectionPoolEntry, __: object) -> None:
    if not dbapi.autocommit:
        dbapi.rollback()


def _used(_: DBAPIConnection | None, record: ConnectionPoolEntry) -> None:
    record.info["used_at"] = time.monotonic()


def _ready(
    engine: Engine, dbapi: Any, record: ConnectionPoolEntry, _: PoolProxiedConnection
) -> None:
    """Have the connection ready for what it is wanted for.

    It may have been used for the other kind of statements: that is changed only where it has to be,
    for psycopg2 gives up Python's lock each time.
    """
    _ping(engine, dbapi, record)
    if dbapi.autocommit is not _wish.at_once:
        dbapi.autocommit = _wish.at_once


def _ping(engine: Engine, dbapi: DBAPIConnection, record: ConnectionPoolEntry) -> None:
    """See whether a connection that lay idle is still one: the pool survives a restart of Postgres.

    SQLAlchemy's own `pool_pre_ping` asks each time, which is a round trip for each transaction.
    """
    used_at = record.info.get("used_at")
    if used_at is None or time.monotonic() - used_at < PING_AFTER_SECONDS:
        return  # new, or just given back by somebody whose statement it had answered
    try:
        alive = engine.dialect.do_ping(dbapi)
    except engine.dialect.loaded_dbapi.Error:
        alive = False
    if not alive:
        raise InvalidatePoolError


@contextmanager
def at_once(engine: Engine) -> Iterator[Connection]:
    """Statements that are transactions of their own: one round trip each, no BEGIN, no COMMIT.

    Not by SQLAlchemy's isolation level AUTOCOMMIT: psycopg2 would say so to the server each time.
    """
    _at_hand(engine).share()
    _wish.at_once = True
    try:
        connection = engine.connect()
    finally:
        _wish.at_once = False
    with connection:
        yield connection


Execute = Callable[[str, Mapping[str, Any]], tuple[Any, ...] | None]
"""Executes a statement, with its parameters; returns the first row of what it returns, if any."""


@contextmanager
def quickly(engine: Engine) -> Iterator[tuple[Execute, dict[Any, Any]]]:
    """The same for the few statements that every step executes, by the driver itself.

    SQLAlchemy takes longer over one of those than Postgres. Its own way is taken if somebody
    listens to statements (tracing). Also yields what is noted of the connection.
    """
    if engine.dispatch.before_cursor_execute or engine.dispatch.after_cursor_execute:
        with at_once(engine) as connection:
            yield partial(_heard, connection), connection.info
        return
    at_hand = _at_hand(engine)
    taken: PoolProxiedConnection | None = None
    try:
        taken = at_hand.take() or _by_itself(engine)
        with taken.driver_connection.cursor() as cursor:  # type: ignore[union-attr]  # it has one
            yield partial(_by_the_driver, cursor), taken.info
    except psycopg2.Error as error:  # as SQLAlchemy would raise it, also if nobody is there
        driver = taken and taken.dbapi_connection
        gone = engine.dialect.is_disconnect(cast("Any", error), driver, None)
        if taken is not None and gone:
            taken.invalidate(error)
        raise DBAPIError.instance(
            None, None, error, psycopg2.Error, connection_invalidated=gone, dialect=engine.dialect
        ) from error
    except BaseException as error:
        if taken is not None:
            taken.invalidate(error)  # it was left in the middle of a statement
        raise
    finally:
        if taken is not None:
            at_hand.put_back(taken)


class _AtHand:
    """A few connections that do not go back to the pool after each statement.

    The pool takes as long over that as the driver over the statement. A quarter of it at most: the
    others are for transactions.
    """

    def __init__(self, engine: Engine) -> None:
        self._dialect = engine.dialect
        self._pool = engine.pool if isinstance(engine.pool, QueuePool) else None
        self._most = self._pool.size() // 4 if self._pool is not None else 0
        self._idle: deque[tuple[PoolProxiedConnection, float]] = deque()
        event.listen(engine, "engine_disposed", lambda _: self._close())

    def take(self) -> PoolProxiedConnection | None:
        """The one that was used last, if it still is one."""
        try:
            connection, used_at = self._idle.pop()
        except IndexError:
            return None
        if time.monotonic() - used_at < PING_AFTER_SECONDS or self._answers(connection):
            return connection
        connection.invalidate()
        connection.close()
        return self.take()

    def put_back(self, connection: PoolProxiedConnection) -> None:
        """Keep it, or let the pool have it: somebody may wait for one there."""
        if connection.is_valid and len(self._idle) < self._most and not self._is_empty:
            self._idle.append((connection, time.monotonic()))
        else:
            connection.close()

    def share(self) -> None:
        """Let the pool have one back before somebody waits for one there."""
        if self._idle and self._is_empty:
            with suppress(IndexError):  # somebody has just taken it
                self._idle.pop()[0].close()

    @property
    def _is_empty(self) -> bool:
        """Whether the pool has none left to give."""
        return self._pool is not None and self._pool.checkedout() >= self._pool.size()

    def _answers(self, connection: PoolProxiedConnection) -> bool:
        try:
            return bool(self._dialect.do_ping(connection.dbapi_connection))  # type: ignore[arg-type]  # it is valid
        except psycopg2.Error:
            return False

    def _close(self) -> None:
        self._most = 0  # of a pool that is gone
        while self._idle:
            connection, _ = self._idle.pop()
            connection.invalidate()
            connection.close()


def _at_hand(engine: Engine) -> _AtHand:
    return cast("_AtHand", engine.get_execution_options()["at_hand"])


def _by_itself(engine: Engine) -> PoolProxiedConnection:
    _wish.at_once = True
    try:
        return engine.raw_connection()
    finally:
        _wish.at_once = False


def _heard(connection: Connection, sql: str, given: Mapping[str, Any]) -> tuple[Any, ...] | None:
    result = connection.exec_driver_sql(sql, dict(given))
    row = result.first() if result.returns_rows else None
    return None if row is None else tuple(row)


def _by_the_driver(cursor: Any, sql: str, given: Mapping[str, Any]) -> tuple[Any, ...] | None:
    cursor.execute(sql, given)
    row: tuple[Any, ...] | None = cursor.fetchone() if cursor.description else None
    return row


@contextmanager
def reading(engine: Engine) -> Iterator[Session]:
    """Reads, each by itself."""
    with at_once(engine) as connection, Session(connection, autoflush=False) as session:
        yield session


@contextmanager
def transaction(engine: Engine) -> Iterator[Session]:
    """One transaction: committed at the end, rolled back if anything is raised."""
    _at_hand(engine).share()
    with Session(engine, expire_on_commit=False, autoflush=False) as session, session.begin():
        yield session
