"""Servers that are restarted under their clients: same address, Postgres' rows, an empty Valkey."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import psutil
import pytest
import redis
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from rejoinder.embedded import Servers, ServersError, servers
from tests import owners
from tests.integration.test_embedded import ask
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ways = pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])

RESTARTING = owners.PROGRAM.replace(
    "sys.stdin.read()", "s.restart(sys.stdin.readline().strip(), down_seconds=60)"
)


@pytest.fixture(scope="module")
def given() -> Iterator[Servers]:
    """Servers that no other test uses; durable, so that a kill loses nothing."""
    with servers(durable=True, environ={}) as running:
        yield running


def pids(given: Servers, name: str) -> set[int]:
    family = psutil.Process(given.guardian_pid).children()
    return {process.pid for process in family if process.name() == name}


@ways
def test_postgres_comes_back_with_its_rows_at_the_same_place(given: Servers, kill: bool) -> None:  # noqa: FBT001
    ask(given.database_url, "CREATE TABLE IF NOT EXISTS kept (n int)", "SELECT 1")
    before = int(ask(given.database_url, "SELECT count(*) FROM kept"))
    ask(given.database_url, "INSERT INTO kept VALUES (42)", "SELECT 1")
    old = pids(given, "postgres")
    given.restart("postgres", kill=kill)
    assert int(ask(given.database_url, "SELECT count(*) FROM kept")) == before + 1
    new = pids(given, "postgres")
    assert len(new) == 1
    assert new != old


@ways
def test_open_connections_are_cut_and_the_pool_finds_the_way_back(
    given: Servers,
    kill: bool,  # noqa: FBT001
) -> None:
    engine = create_engine(given.database_url, pool_pre_ping=True)
    with engine.connect() as open_one, engine.connect() as in_transaction:
        open_one.execute(text("SELECT 1"))
        in_transaction.execute(text("CREATE TABLE undone ()"))
        given.restart("postgres", kill=kill)
        with pytest.raises(OperationalError):
            open_one.execute(text("SELECT 1"))
        in_transaction.invalidate()
    with engine.connect() as again:
        assert again.execute(text("SELECT to_regclass('undone')")).scalar() is None
    engine.dispose()


@ways
def test_valkey_comes_back_empty_and_its_clients_reconnect(given: Servers, kill: bool) -> None:  # noqa: FBT001
    with redis.Redis.from_url(given.redis_url) as client:
        client.set("lost", "yes")
        given.restart("valkey", kill=kill)
        assert client.get("lost") is None
        assert client.set("kept", "yes")
    assert len(pids(given, "valkey-server")) == 1


def test_a_kept_valkey_that_is_stopped_remembers(data: Path) -> None:
    with servers(data, environ={}) as kept, redis.Redis.from_url(kept.redis_url) as client:
        client.set("kept", "yes")
        kept.restart("valkey")
        assert client.get("kept") == b"yes"


def test_a_server_is_away_for_as_long_as_asked(given: Servers) -> None:
    def refused() -> bool:
        try:
            with redis.Redis.from_url(given.redis_url) as client:
                client.ping()
        except redis.ConnectionError:
            return True
        return False

    began = time.monotonic()
    restart = threading.Thread(target=given.restart, args=["valkey"], kwargs={"down_seconds": 1.5})
    restart.start()
    wait_until(refused)
    assert ask(given.database_url, "SELECT 1") == "1", "the other server is not touched"
    assert refused()
    restart.join()
    assert time.monotonic() - began >= 1.5
    assert not refused()


def test_two_restarts_at_once_wait_for_each_other(given: Servers) -> None:
    asked = [("postgres", False), ("valkey", True), ("postgres", True), ("valkey", False)]
    threads = [
        threading.Thread(target=given.restart, args=[server], kwargs={"kill": kill})
        for server, kill in asked
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ask(given.database_url, "SELECT 1") == "1"
    with redis.Redis.from_url(given.redis_url) as client:
        assert client.ping()
    assert len(pids(given, "postgres") | pids(given, "valkey-server")) == 2


def test_a_server_of_the_environment_is_not_ours_to_restart(given: Servers) -> None:
    database = {"REJOINDER_DATABASE_URL": given.database_url}
    broker = {"REJOINDER_REDIS_URL": given.redis_url}
    with (
        servers(environ=database | broker) as both,
        pytest.raises(ServersError, match="REJOINDER_REDIS_URL names it"),
    ):
        both.restart("valkey")
    with servers(environ=database) as one:
        with pytest.raises(ServersError, match="REJOINDER_DATABASE_URL names it"):
            one.restart("postgres")
        one.restart("valkey")


def test_a_dead_guardian_is_told() -> None:
    with servers(environ={}) as alone:
        psutil.Process(alone.guardian_pid).kill()
        with pytest.raises(ServersError, match="guardian of the embedded servers died"):
            alone.restart("valkey")


def test_a_server_that_does_not_come_back_is_quoted(data: Path) -> None:
    with servers(data, environ={}) as broken:
        assert broken.home is not None
        (broken.home / "postgres" / "PG_VERSION").write_text("9.1\n")
        with pytest.raises(ServersError, match="database files are incompatible"):
            broken.restart("postgres")
        (broken.home / "postgres" / "PG_VERSION").write_text("18\n")
        broken.restart("postgres")
        assert ask(broken.database_url, "SELECT 1") == "1"


@pytest.mark.parametrize("server", ["postgres", "valkey"])
def test_an_owner_killed_during_a_restart_leaves_no_orphans(server: str) -> None:
    with owners.owner(program=RESTARTING) as owner:
        name = {"postgres": "postgres", "valkey": "valkey-server"}[server]
        down = [each for each in owner.guardian.children() if each.name() == name]
        assert owner.process.stdin
        owner.process.stdin.write(f"{server}\n")
        owner.process.stdin.flush()
        wait_until(lambda: not [each for each in down if owners.is_alive(each)])
        owner.kill()
        owner.assert_nothing_left()
        assert not owner.guardian.is_running() or not owner.guardian.children()
