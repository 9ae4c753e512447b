"""Real Postgres and Valkey servers, started from wheels: no Docker, no root, no package manager.

`servers()` is the one way in, for tests, the demo and every other command. It never leaves a
process behind: a guardian process (`__main__.py`) owns both servers and stops them when this
process closes it, exits, or is killed. It never touches a server that the environment names
instead (`REJOINDER_DATABASE_URL`, `REJOINDER_REDIS_URL`). Next: `places.py` for folders and
accounts, `postgres.py` and `valkey.py` for what is special about each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from rejoinder.embedded import leftovers, places
from rejoinder.embedded.errors import ServersError
from rejoinder.embedded.order import Order, Restart, Server

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Servers", "ServersError", "servers"]

# Longer than the guardian's own patience with the servers, so that it is never cut short by us.
GUARDIAN_STOP_SECONDS = 60


@dataclass(frozen=True)
class Servers:
    """Where the servers answer, and (if one is ours) who guards it and where it logs."""

    database_url: str
    redis_url: str
    guardian_pid: int | None = None
    home: Path | None = None
    guardian: Guardian | None = field(default=None, repr=False, compare=False)

    def restart(self, server: Server, *, down_seconds: float = 0.0, kill: bool = False) -> None:
        """Stop (or kill) a server, wait, start it again; blocks until it answers on the same URL.

        Postgres keeps its data; killed, a temporary one may lose what it committed in the last
        second, since it does not wait for its disk (a durable or kept one loses nothing). A
        temporary Valkey comes back empty. A server that the environment names is refused.
        """
        if self.guardian is None or not getattr(self.guardian.order, server):
            variable = {"postgres": "REJOINDER_DATABASE_URL", "valkey": "REJOINDER_REDIS_URL"}
            raise ServersError(
                f"{server} is not ours to restart: {variable[server]} names it. Unset that."
            )
        self.guardian.restart(Restart(server, down_seconds, kill))


@contextmanager
def servers(
    data: Path | None = None,
    *,
    durable: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> Iterator[Servers]:
    """Both servers, ready to answer on entry and gone after exit.

    `data` is a folder that keeps their data; None is a temporary one. A server whose URL is in
    `environ` is used as it is, and only the other one is started. `durable` asks for fsync in a
    temporary folder too (a kept one always has it).
    """
    database_url = environ.get("REJOINDER_DATABASE_URL") or None
    redis_url = environ.get("REJOINDER_REDIS_URL") or None
    if database_url and redis_url:
        yield Servers(database_url, redis_url)
        return
    owner = os.getpid()
    run = places.make_run_folder()
    home = run
    try:
        leftovers.sweep(run.parent, places.RAM_DISK)
        home = places.home_of(data) if data else places.temporary_home(run, durable=durable)
        order = Order(
            owner=owner,
            run=str(run),
            home=str(home),
            kept=data is not None,
            durable=durable or data is not None,
            postgres=database_url is None,
            valkey=redis_url is None,
        )
        with _guardian(order) as (guardian, urls):
            yield Servers(
                database_url=database_url or urls["database_url"],
                redis_url=redis_url or urls["redis_url"],
                guardian_pid=guardian.process.pid,
                home=home,
                guardian=guardian,
            )
    finally:
        if os.getpid() == owner:
            # The guardian does the same; this is for one that was killed.
            leftovers.remove(run, home, kept=data is not None)


@dataclass(frozen=True)
class Guardian:
    """The process that owns the servers, and how to talk to it."""

    process: subprocess.Popen[str]
    order: Order
    _talking: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def restart(self, asked: Restart) -> None:
        """Ask for a restart, and wait for it."""
        with self._talking:
            pipe = cast("IO[str]", self.process.stdin).fileno()  # no buffer: none is left behind
            with suppress(BrokenPipeError):  # it is dead, which the answer will say
                os.write(pipe, json.dumps(asdict(asked)).encode() + b"\n")
            self.answer()

    def answer(self) -> dict[str, str]:
        """What it says next; an error that it reports is raised."""
        line = cast("IO[str]", self.process.stdout).readline()
        if not line:
            self.process.wait(GUARDIAN_STOP_SECONDS)
            log = places.tail(Path(self.order.home) / "guardian.log")
            raise ServersError(
                f"The guardian of the embedded servers died ({self.process.returncode}).\n{log}"
            )
        report: dict[str, str] = json.loads(line)
        if "error" in report:
            raise ServersError(report["error"])
        return report


@contextmanager
def _guardian(order: Order) -> Iterator[tuple[Guardian, dict[str, str]]]:
    """The guardian process and the URLs it reported; it is told to stop, and awaited, on exit."""
    source = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    with (Path(order.home) / "guardian.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "rejoinder.embedded", json.dumps(asdict(order))],
            stdin=subprocess.PIPE,  # held open by us alone: its end tells the guardian of ours
            stdout=subprocess.PIPE,
            stderr=log,
            cwd="/",
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # the terminal's Ctrl-C is for us; we then stop the guardian
            text=True,
        )
    try:
        guardian = Guardian(process, order)
        yield guardian, guardian.answer()
    finally:
        _stop(process, order.owner)


def _stop(process: subprocess.Popen[str], owner: int) -> None:
    if os.getpid() != owner:  # a fork of the owner unwinds its copy of the stack: not its servers
        return
    process.terminate()
    try:
        process.wait(GUARDIAN_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        cast("IO[str]", pipe).close()
