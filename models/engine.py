"""Connections to Postgres, set up one way for everybody.

`make_engine` is the only place that creates an engine; `transaction` is the only way the machine's
functions are run: commit or nothing. Neither ever publishes; `Effects` are the caller's to publish
once `transaction` has ended.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, ExceptionContext, create_engine, event
from sqlalchemy.orm import Session

from models.types import as_json
from rejoinder.core.errors import Refused
from rejoinder.core.limits import IDLE_IN_TRANSACTION_MS, LOCK_TIMEOUT_MS


def _refuse_plainly(context: ExceptionContext) -> None:
    # A refusal from inside a statement's parameters stays what it is, instead of being wrapped.
    if isinstance(context.original_exception, Refused):
        raise context.original_exception


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
        "pool_pre_ping": True,  # a ping per checkout: the pool survives a restart of Postgres
        "connect_args": connect,
    }
    engine = create_engine(url, **defaults | options)
    event.listen(engine, "handle_error", _refuse_plainly)
    return engine


@contextmanager
def transaction(engine: Engine) -> Iterator[Session]:
    """One transaction: committed at the end, rolled back if anything is raised."""
    with Session(engine, expire_on_commit=False, autoflush=False) as session, session.begin():
        yield session
