"""No orphans: however the owner or the guardian ends, the servers end, and can start again."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from rejoinder.embedded import leftovers, places, servers
from tests import owners
from tests.integration.test_embedded import ask
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="the kernel must tell the children")

FORKING = owners.PROGRAM.replace("sys.stdin.read()", "os.fork(); sys.stdin.read()")


def kill_all(owner: owners.Owner) -> None:
    """A power cut, as far as a test can make one."""
    owner.kill()
    for process in (owner.guardian, *owner.servers):
        if owners.is_alive(process):
            process.kill()
    wait_until(lambda: not owner.processes_left())


def test_a_killed_owner_leaves_no_orphans() -> None:
    with owners.owner() as owner:
        assert len(owner.processes_left()) >= 3
        owner.kill()
        owner.assert_nothing_left()


def test_a_killed_owner_leaves_no_orphans_even_if_its_fork_lives_on() -> None:
    with owners.owner(program=FORKING) as owner:
        family = psutil.Process(owner.process.pid)
        forks = wait_until(lambda: [c for c in family.children() if c.pid != owner.guardian.pid])
        owner.kill()
        owner.assert_nothing_left()
        assert owners.is_alive(forks[0])
        forks[0].kill()


@linux_only
def test_a_killed_guardian_takes_the_servers_along() -> None:
    with owners.owner() as owner:
        owner.guardian.kill()
        wait_until(lambda: not owner.processes_left(), 10)
        assert owner.close() == 0
        owner.assert_nothing_left()


def test_a_terminated_guardian_stops_the_servers() -> None:
    with owners.owner() as owner:
        owner.guardian.terminate()
        owner.assert_nothing_left()


def test_ctrl_c_is_a_clean_stop(data: Path) -> None:
    with owners.owner(str(data)) as owner:
        assert owner.interrupt() == -signal.SIGINT
        assert owner.processes_left() == []
        owner.assert_nothing_left(kept=True)
        assert "database system is shut down" in (owner.home / "postgres.log").read_text()


def test_an_owner_killed_during_the_start_leaves_no_orphans(data: Path) -> None:
    process = owners.start(str(data))
    guardian = wait_until(lambda: psutil.Process(process.pid).children(), 10)[0]
    process.kill()
    process.communicate()
    wait_until(lambda: not owners.is_alive(guardian), 20)
    with servers(data, environ={}) as given:
        assert ask(given.database_url, "SELECT 1") == "1"


@linux_only
def test_a_folder_whose_owner_and_guardian_were_killed_can_be_used_at_once(data: Path) -> None:
    with owners.owner(str(data)) as owner:
        ask(owner.database_url, "CREATE TABLE kept AS SELECT 42 AS n", "SELECT 1")
        owner.kill()
        owner.guardian.kill()
        with servers(data, environ={}) as given:
            assert ask(given.database_url, "SELECT n FROM kept") == "42"


def test_a_stale_pid_file_does_not_block_the_next_start(data: Path) -> None:
    with owners.owner(str(data)) as owner:
        ask(owner.database_url, "CREATE TABLE kept AS SELECT 42 AS n", "SELECT 1")
        kill_all(owner)
        stale = owner.home / "postgres" / "postmaster.pid"
        lines = stale.read_text().splitlines()
        stale.write_text("\n".join([str(os.getppid()), *lines[1:]]))  # its number was given anew
        with servers(data, environ={}) as given:
            assert ask(given.database_url, "SELECT n FROM kept") == "42"


def test_a_later_start_removes_the_folders_of_the_dead_and_spares_the_living() -> None:
    with owners.owner() as dead, owners.owner() as living:
        kill_all(dead)
        long_ago = time.time() - 2 * leftovers.YOUNG_SECONDS
        for owner in (dead, living):
            os.utime(owner.home / "lock", (long_ago, long_ago))
        leftovers.sweep(dead.run.parent, places.RAM_DISK)
        assert not dead.run.exists()
        assert not dead.home.exists()
        assert ask(living.database_url, "SELECT 1") == "1"
        assert living.close() == 0
