"""Processes that own embedded servers, for tests to close, interrupt and kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar, cast

import psutil

from rejoinder.embedded import leftovers
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

ROOT = Path(__file__).parents[1]
T = TypeVar("T")

PROGRAM = """
import json, os, pathlib, sys
from rejoinder.embedded import ServersError, servers
try:
    with servers(pathlib.Path(sys.argv[1]) if sys.argv[1:] else None) as s:
        print(json.dumps([s.database_url, s.redis_url, s.guardian_pid, str(s.home)]), flush=True)
        sys.stdin.read()
except ServersError as error:
    sys.exit(f"ServersError: {error}")
"""


@dataclass(frozen=True)
class Owner:
    """A process with servers of its own, in a process group of its own."""

    process: subprocess.Popen[str]
    database_url: str
    redis_url: str
    guardian: psutil.Process
    servers: list[psutil.Process]
    home: Path

    @property
    def run(self) -> Path:
        """The folder with the socket."""
        return Path(self.database_url.partition("?host=")[2].partition("&")[0])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> int:
        cast("IO[str]", self.process.stdin).close()
        return self.process.wait(30)

    def interrupt(self) -> int:
        """What the terminal does on Ctrl-C."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.process.wait(30)

    def processes_left(self) -> list[psutil.Process]:
        return [process for process in (self.guardian, *self.servers) if is_alive(process)]

    def answers(self, question: Callable[[psutil.Process], T]) -> list[T]:
        """What each process says; Postgres' own workers may end at any moment."""
        said = []
        for process in (self.guardian, *self.servers):
            with suppress(psutil.NoSuchProcess):
                said.append(question(process))
        return said

    def assert_nothing_left(self, within: float = 10.0, *, kept: bool = False) -> None:
        wait_until(lambda: not self.processes_left(), within, f"end of {self.processes_left()}")
        wait_until(lambda: not self.run.exists(), within, f"removal of {self.run}")
        if not kept:
            wait_until(lambda: not self.home.exists(), within, f"removal of {self.home}")


def is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def environment(**more: str) -> dict[str, str]:
    """The environment without external servers, and with the root first."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REJOINDER_")}
    return {**kept, "PYTHONPATH": str(ROOT), **more}


def start(
    *arguments: str,
    python: str = sys.executable,
    program: str = PROGRAM,
    env: Mapping[str, str] | None = None,
    user: int | None = None,
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [python, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment() if env is None else env,
        cwd="/",
        text=True,
        process_group=0,
        user=user,
        group=user,
        extra_groups=None if user is None else [],
    )


def refusal(*arguments: str, python: str = sys.executable) -> str:
    """What a start that must fail says."""
    process = start(*arguments, python=python)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1, said
    return said


@contextmanager
def owner(
    *arguments: str,
    python: str = sys.executable,
    program: str = PROGRAM,
    env: Mapping[str, str] | None = None,
    user: int | None = None,
) -> Iterator[Owner]:
    """A running owner; whatever the test leaves of it is cleared away."""
    process = start(*arguments, python=python, program=program, env=env, user=user)
    line = cast("IO[str]", process.stdout).readline()
    assert line, process.communicate(timeout=60)
    database_url, redis_url, guardian_pid, home = json.loads(line)
    guardian = psutil.Process(guardian_pid)
    servers = guardian.children(recursive=True)
    running = Owner(process, database_url, redis_url, guardian, servers, Path(home))
    try:
        yield running
    finally:
        running.kill()
        if is_alive(running.guardian):
            running.assert_nothing_left(kept=True)
        for left in running.processes_left():
            with suppress(psutil.NoSuchProcess):
                left.kill()
        leftovers.remove(running.run, running.home, kept=bool(arguments))
        for pipe in (process.stdin, process.stdout, process.stderr):
            cast("IO[str]", pipe).close()
