"""Where contenders meet: the same servers and the same model, and for each a database of its own.

Two fleets on one Redis database would take each other's tasks, so each contender has a number of
its own there, too; and what it costs Postgres can be told from what the others cost.
"""

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import psycopg2
import redis
from sqlalchemy import URL, make_url

from rejoinder import embedded
from scripts.bench_parts.model import Model
from scripts.bench_parts.processes import children_named
from scripts.bench_parts.task import MODEL
from scripts.bench_parts.variants import Variant
from scripts.fleet import environment

_REDIS_DATABASES = 16
_numbers = count()
_folders = count()


@dataclass(frozen=True)
class Place:
    """Servers of this run, the model, and a folder for logs."""

    servers: embedded.Servers
    model: Model
    logs: Path
    database: str = "postgres"
    redis_number: int = 0
    settings: Mapping[str, str] = field(default_factory=dict)
    """More environment, for one contender."""
    variant: Variant = field(default_factory=Variant)
    """What Rejoinder's workers run here."""
    variants: Sequence[Variant] = ()
    """What they are to be compared with."""
    small: bool = False
    """Only to see it run: with as few processes as will do."""

    def prepare(self) -> None:
        """Migrate the databases that the contenders' are copies of, once."""
        by_template = {each.template: each for each in (self.variant, *self.variants)}
        for template, variant in by_template.items():
            self.execute(f"CREATE DATABASE {template}")
            variant.migrate(self._url(template))

    def apart(self, variant: Variant | None = None, /, **settings: str) -> "Place":
        """A place like this one, for one contender alone: migrated, and empty."""
        variant = variant or self.variant
        name = f"bench_{secrets.token_hex(4)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {variant.template}")
        made = replace(
            self,
            database=name,
            redis_number=next(_numbers) % (_REDIS_DATABASES - 1) + 1,
            settings={**variant.settings, **settings},
            variant=variant,
        )
        with redis.Redis.from_url(made.redis_url) as server:
            server.flushdb()
        return made

    @property
    def model_url(self) -> str:
        """Where the model answers."""
        return self.model.url

    @property
    def database_url(self) -> str:
        """As SQLAlchemy wants it."""
        return self._url(self.database)

    @property
    def dsn(self) -> str:
        """As libpq wants it."""
        url = self._database(self.database).set(drivername="postgresql")
        return url.render_as_string(hide_password=False)

    @property
    def redis_url(self) -> str:
        """Broker, results and streams."""
        return f"{self.servers.redis_url.rpartition('/')[0]}/{self.redis_number}"

    @property
    def env(self) -> dict[str, str]:
        """What the contender's processes get."""
        return environment(
            self.database_url,
            self.redis_url,
            ANTHROPIC_BASE_URL=self.model.url,
            ANTHROPIC_API_KEY="bench",
            BENCH_DATABASE_DSN=self.dsn,
            BENCH_REDIS_URL=self.redis_url,
            REJOINDER_MODEL=f"anthropic:{MODEL}",
            REJOINDER_TOOLS="scripts.bench_parts.tools",
            REJOINDER_TITLE_MODEL="off",
            **self.settings,
        )

    @property
    def server_pids(self) -> dict[str, list[int]]:
        """The processes that all contenders share."""
        guardian = self.servers.guardian_pid
        found = {"model": [self.model.pid]}
        if guardian is not None:
            for name in ("postgres", "valkey"):
                found[name] = children_named(guardian, name)
        return found

    def execute(
        self,
        sql: str,
        given: Any = None,
        *,
        database: str = "postgres",  # as psycopg2 takes them
    ) -> list[Any]:
        """Run a statement by itself; its rows, if it has any."""
        url = self._database(database).set(drivername="postgresql")
        connection = psycopg2.connect(url.render_as_string(hide_password=False))
        connection.autocommit = True
        try:
            with connection.cursor() as cursor:
                cursor.execute(sql, given)
                return cursor.fetchall() if cursor.description else []
        finally:
            connection.close()

    def _url(self, database: str) -> str:
        return self._database(database).render_as_string(hide_password=False)

    def _database(self, name: str) -> URL:
        return make_url(self.servers.database_url).set(database=name)


def own_folder(logs: Path, name: str) -> Path:
    """A folder for one contender's logs: their workers have the same names."""
    plain = re.sub(r"[^\w@.]+", "-", name)
    folder = logs / f"{plain}-{next(_folders)}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
