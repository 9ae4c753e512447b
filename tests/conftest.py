"""What every test can ask for: servers, a database of its own, a Redis key space of its own.

Each pytest process starts its own embedded servers, the first time a test asks. It migrates one
template database; a test's database is a copy of that, which costs milliseconds. With
REJOINDER_DATABASE_URL or REJOINDER_REDIS_URL set, the same happens on those servers. A test's tier
is its folder, and a unit test that opens a connection fails.
"""

from __future__ import annotations

import secrets
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import psycopg2
import pytest
import redis
from sqlalchemy import NullPool, create_engine, make_url, text

from rejoinder import embedded
from tests.stages import Stages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection, Engine
    from xdist.remote import Producer

TESTS = Path(__file__).parent
TIERS = ("unit", "integration", "scenarios", "arch")
NEEDS_SERVERS = {"servers", "database_url", "engine", "redis_space"}


@dataclass(frozen=True)
class RedisSpace:
    """A server, and the prefix that every key of this test starts with."""

    url: str
    prefix: str

    def key(self, name: str) -> str:
        """This test's own key of that name."""
        return f"{self.prefix}{name}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        tier = item.path.relative_to(TESTS).parts[0]
        if tier not in TIERS:
            raise pytest.UsageError(
                f"{item.path} is in no tier: move it to tests/{{{','.join(TIERS)}}}/"
            )
        item.add_marker(tier)


@pytest.hookimpl(optionalhook=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say aloud what was not tested, and why: a skipped test is easily overlooked."""
    skipped = {report.longrepr[2] for report in terminalreporter.stats.get("skipped", ())}
    for reason in sorted(skipped):
        terminalreporter.write_line(f"NOT TESTED: {reason}", yellow=True, bold=True)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Stages | None:
    ours = config.getoption("dist") in ("load", "loadgroup")
    return Stages(config, log) if ours else None


@pytest.fixture(autouse=True)
def _unit_tests_open_no_sockets(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if request.node.get_closest_marker("unit") is None:
        return
    if asked := NEEDS_SERVERS & set(request.fixturenames):
        pytest.fail(f"a unit test asks for {sorted(asked)}: move it to tests/integration/")

    def refuse(*_args: object, **_options: object) -> NoReturn:
        pytest.fail(
            "a unit test opens a connection: fake it, or move the test to tests/integration/"
        )

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "connect_ex", refuse)
    monkeypatch.setattr(psycopg2, "connect", refuse)  # libpq has sockets of its own


@pytest.fixture(scope="session")
def servers() -> Iterator[embedded.Servers]:
    with embedded.servers() as running:
        yield running


@pytest.fixture(scope="session")
def _administrator(servers: embedded.Servers) -> Iterator[Connection]:
    engine = create_engine(servers.database_url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with engine.connect() as connection:
        yield connection


@pytest.fixture(scope="session")
def _template(servers: embedded.Servers, _administrator: Connection) -> Iterator[str]:
    # Imported here: tests of the house itself do not wait for the tables.
    from models.migrate import upgrade  # noqa: PLC0415

    name = f"rejoinder_template_{secrets.token_hex(6)}"
    _administrator.execute(text(f"CREATE DATABASE {name}"))
    upgrade(_at(servers.database_url, name))
    yield name
    _administrator.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture
def database_url(
    servers: embedded.Servers, _administrator: Connection, _template: str
) -> Iterator[str]:
    """An empty, migrated database that no other test sees."""
    name = f"rejoinder_test_{secrets.token_hex(6)}"
    # Copying files (10 ms) beats logging every page (22 ms) where fsync is off.
    _administrator.execute(text(f"CREATE DATABASE {name} TEMPLATE {_template} STRATEGY file_copy"))
    yield _at(servers.database_url, name)
    _administrator.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    from models.engine import make_engine  # noqa: PLC0415  as above

    engine = make_engine(database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def redis_space(servers: embedded.Servers) -> Iterator[RedisSpace]:
    space = RedisSpace(servers.redis_url, f"test-{secrets.token_hex(6)}:")
    yield space
    with redis.Redis.from_url(space.url) as client:
        for key in client.scan_iter(match=f"{space.prefix}*", count=1000):
            client.unlink(key)


def _at(url: str, database: str) -> str:
    return make_url(url).set(database=database).render_as_string(hide_password=False)
