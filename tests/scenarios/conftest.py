"""A stage for whole processes: servers, a database, and a fleet of real workers."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import redis
from sqlalchemy import Connection, make_url, text

from models.engine import make_engine
from rejoinder import embedded
from rejoinder.client import Client
from scripts.fleet import Fleet, environment
from tests.chats import World
from tests.scenarios.bank import Bank, open_bank
from tests.scenarios.house import House, open_house

QUICK = {
    "REJOINDER_HEARTBEAT_SECONDS": "0.5",
    "REJOINDER_DEAD_AFTER_SECONDS": "5",
    "REJOINDER_MAX_STEPS": "30",
    "REJOINDER_MODEL": "scripted:echo",
    "REJOINDER_TOOLS": "rejoinder.tools.examples,tests.scenarios.some_tools",
}

PLAIN = "threads, REJOINDER_FAST=off"
ON_THE_PLAIN_WAY = ("test_turns", "test_steps")


@dataclass
class Stage:
    """Where a scenario plays."""

    fleet: Fleet
    client: Client
    world: World
    redis_url: str
    pool: str
    keeps: bool
    """Whether the process that commits keeps the chat for its next step."""

    def logs(self) -> str:
        """Everything the fleet has logged."""
        return "\n".join(member.text() for member in self.fleet.members)


@pytest.fixture(scope="session")
def make_database(
    servers: embedded.Servers, _administrator: Connection, _template: str
) -> Iterator[object]:
    """A function that makes a migrated database which lasts as long as the session."""
    made: list[str] = []

    def make() -> str:
        name = f"rejoinder_stage_{secrets.token_hex(6)}"
        _administrator.execute(text(f"CREATE DATABASE {name} TEMPLATE {_template}"))
        made.append(name)
        url = make_url(servers.database_url).set(database=name)
        return url.render_as_string(hide_password=False)

    yield make
    for name in made:
        _administrator.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Play on both pools; what is true of every step, also without the fast paths."""
    if "stage" in metafunc.fixturenames:
        plain = [PLAIN] if metafunc.module.__name__.rpartition(".")[2] in ON_THE_PLAIN_WAY else []
        metafunc.parametrize("stage", ["threads", "prefork", *plain], indirect=True, scope="module")


@pytest.fixture(scope="module")
def stage(
    request: pytest.FixtureRequest,
    servers: embedded.Servers,
    make_database: object,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stage]:
    """Two workers of one pool, on a database of their own; shared by a module's tests."""
    database_url = make_database()  # type: ignore[operator]
    with redis.Redis.from_url(servers.redis_url) as connection:
        connection.flushdb()
    logs: Path = tmp_path_factory.mktemp("logs")
    pool = request.param.partition(",")[0]
    fast = {"REJOINDER_FAST": "off"} if request.param == PLAIN else {}
    env = environment(database_url, servers.redis_url, **QUICK, **fast)
    engine = make_engine(database_url)
    with Fleet(env, logs) as fleet, Client(broker_url=servers.redis_url, timeout=30) as client:
        for name in ("one", "two"):
            fleet.worker(name, pool=pool, concurrency=8)
        fleet.wait_until_ready()
        for member in fleet.members:
            children = psutil.Process(member.pid).children()
            assert bool(children) is (pool == "prefork")
        keeps = request.param == "threads"  # a child of prefork cannot
        yield Stage(fleet, client, World(engine), servers.redis_url, pool, keeps)
    engine.dispose()


@pytest.fixture(scope="module", params=["threads", "prefork"])
def house(
    request: pytest.FixtureRequest,
    servers: embedded.Servers,
    make_database: object,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[House]:
    """A worker for front-door calls; those for steps come and go. Shared by a module's tests."""
    database_url = make_database()  # type: ignore[operator]
    folder = tmp_path_factory.mktemp("house")
    with open_house(request.param, database_url, servers.redis_url, folder, QUICK) as opened:
        yield opened


@pytest.fixture(scope="module", params=["threads", "prefork"])
def bank(
    request: pytest.FixtureRequest,
    servers: embedded.Servers,
    make_database: object,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Bank]:
    """A house and another app with a worker of its own. Shared by a module's tests."""
    database_url = make_database()  # type: ignore[operator]
    folder = tmp_path_factory.mktemp("bank")
    with open_bank(request.param, database_url, servers.redis_url, folder, QUICK) as opened:
        yield opened
