"""Bring a database to the current shape, or back.

Migrations live in `migrations/versions`. The rule that keeps deploys safe: the previous release
must keep working on the new schema (expand first, contract one release later); a test compares
schemas for that. An advisory lock lets every pod of a deploy call `upgrade` at once.
"""

from collections.abc import Callable
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, text
from sqlalchemy.pool import NullPool

from models.base import SCHEMA
from models.engine import make_engine

RELEASED = "0001"
"""The revision of the newest release; migrations after it must leave that release working."""

_LOCK = 7_305_423_011  # any number, as long as all of us use the same


def upgrade(url: str, revision: str = "head") -> None:
    """Migrate up to a revision."""
    _run(url, lambda config: command.upgrade(config, revision))


def downgrade(url: str, revision: str = "base") -> None:
    """Migrate down to a revision; `base` removes everything, rows included."""
    _run(url, lambda config: command.downgrade(config, revision))


def config_for(connection: Connection | None = None) -> Config:
    """Alembic's configuration, without a file."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def _run(url: str, act: Callable[[Config], None]) -> None:
    engine = make_engine(url, poolclass=NullPool)
    # The lock outlives the migration's transactions, so it is held on a connection of its own.
    with engine.connect() as guard, engine.connect() as connection:
        guard.execute(text("SET lock_timeout = 0"))  # another pod may be migrating: wait for it
        guard.execute(text("SET idle_in_transaction_session_timeout = 0"))
        guard.execute(text("SELECT pg_advisory_lock(:key)"), {"key": _LOCK})
        connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
        connection.commit()
        act(config_for(connection))
