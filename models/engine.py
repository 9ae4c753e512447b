"""Connections to Postgres, set up one way for everybody.

`make_engine` is the only place that creates an engine; `transaction` is the only way the machine's
functions are run: commit or nothing. Neither ever publishes; `Effects` are the caller's to publish
once `transaction` has ended. Single statements go through a second engine with a pool of its own,
whose connections are in autocommit mode for good (`autocommit`): one round trip each.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

from sqlalchemy import Connection, Engine, ExceptionContext, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import InvalidatePoolError
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection

from models.db_errors import leads_nowhere
from models.types import as_json
from rejoinder.core.errors import Refused
from rejoinder.core.limits import IDLE_IN_TRANSACTION_MS, LOCK_TIMEOUT_MS

PING_AFTER_SECONDS = 1.0
"""A connection that was used less long ago is taken to be one."""


def make_engine(url: str, *, prepare: bool = True, **options: Any) -> Engine:
    """Create an engine for this database; connections are made when first needed.

    `prepare` allows prepared statements (`prepared.py`); the rest are SQLAlchemy's own options. A
    pool's size is for both kinds of connections together.
    """
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
    # Errors are logged, and parameters hold what users said.
    ours = {"json_serializer": as_json, "connect_args": connect, "hide_parameters": True}
    options = ours | options
    single = {
        "isolation_level": "AUTOCOMMIT",
        "skip_autocommit_rollback": True,
        "pool_reset_on_return": None,  # there is nothing to undo
    }
    half: dict[str, int] = {}
    if size := options.get("pool_size"):
        half = {"pool_size": max(1, size // 2)}
        single["pool_size"] = max(1, size - size // 2)
    engine, by_itself = _create(url, options | half), _create(url, options | single)
    by_itself.update_execution_options(prepare=prepare)
    engine.update_execution_options(autocommit=by_itself)
    event.listen(engine, "engine_disposed", lambda _: by_itself.dispose())
    return engine


def _create(url: str, options: dict[str, Any]) -> Engine:
    engine = create_engine(url, **options)
    event.listen(engine, "handle_error", _refuse_plainly)
    event.listen(engine, "handle_error", _drop_after_failover)
    event.listen(engine, "checkin", _note_use)
    event.listen(engine, "checkout", partial(_ping, engine))
    return engine


def _refuse_plainly(context: ExceptionContext) -> None:
    # A refusal from inside a statement's parameters stays what it is, instead of being wrapped.
    if isinstance(context.original_exception, Refused):
        raise context.original_exception


def _drop_after_failover(context: ExceptionContext) -> None:
    # SQLAlchemy then invalidates this connection and the pool's others of the same age.
    if leads_nowhere(context.original_exception):
        context.is_disconnect = True


def _note_use(_: DBAPIConnection | None, record: ConnectionPoolEntry) -> None:
    record.info["used_at"] = time.monotonic()


def _ping(
    engine: Engine, dbapi: DBAPIConnection, record: ConnectionPoolEntry, _: PoolProxiedConnection
) -> None:
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


def autocommit(engine: Engine) -> Engine:
    """The engine of single statements that goes with this one.

    Not a view of the same pool: psycopg2 would tell the server at each change between the two.
    """
    return cast("Engine", engine.get_execution_options()["autocommit"])


@contextmanager
def at_once(engine: Engine) -> Iterator[Connection]:
    """Statements that are transactions of their own: one round trip each, no BEGIN, no COMMIT."""
    with autocommit(engine).connect() as connection:
        yield connection


@contextmanager
def reading(engine: Engine) -> Iterator[Session]:
    """Reads, each by itself."""
    with at_once(engine) as connection, Session(connection, autoflush=False) as session:
        yield session


@contextmanager
def transaction(engine: Engine) -> Iterator[Session]:
    """One transaction: committed at the end, rolled back if anything is raised."""
    with Session(engine, expire_on_commit=False, autoflush=False) as session, session.begin():
        yield session
