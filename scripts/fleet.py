"""A fleet of real Celery processes: workers, beat, Flower, each with a log file of its own.

    with Fleet(environment(servers.database_url, servers.redis_url), logs) as fleet:
        one = fleet.worker("one", pool="prefork", concurrency=2)
        fleet.wait_until_ready()
        one.signal(signal.SIGTERM)

Used by `make up`, `make chat`, `make demo` and the scenario tests. Whatever it started is gone when
the `with` ends, in reverse order of its start; if this process is killed, the kernel ends the rest
(`tethered.py`). It starts no servers (`rejoinder.embedded` does) and restarts nothing.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

ROOT = Path(__file__).resolve().parents[1]
TETHERED = str(Path(__file__).with_name("tethered.py"))
READY_SECONDS = 90.0
"""How long a start may take, on a machine that has other things to do."""
STOP_SECONDS = 15.0
"""How long a warm shutdown may take before the process is killed."""
POLL_SECONDS = 0.05
# Celery warns everybody who is root; in a container that is everybody.
_NO_ROOT_WARNING = "ignore:You're running the worker with superuser privileges"


class FleetError(RuntimeError):
    """A process did not start, or ended by itself; the text has the last lines of its log."""


def environment(database_url: str, redis_url: str, **settings: str) -> dict[str, str]:
    """The environment of a fleet's processes: ours, the servers, and the root first on the path."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {
        **os.environ,
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
        "PYTHONWARNINGS": _NO_ROOT_WARNING,
        "REJOINDER_DATABASE_URL": database_url,
        "REJOINDER_REDIS_URL": redis_url,
        **settings,
    }


@dataclass
class Member:
    """One process of the fleet."""

    name: str
    process: "subprocess.Popen[bytes]"
    log: Path
    ready_when: str
    """What its log says once it is ready."""
    stopping: bool = field(default=False, init=False)
    """Somebody asked it to end: its end is no surprise."""

    @property
    def pid(self) -> int:
        """The process id; with prefork, the parent's."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    @property
    def ready(self) -> bool:
        """Whether it has said so."""
        return self.ready_when in self.text()

    def text(self) -> str:
        """Everything it has logged so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def last_lines(self, count: int = 15) -> str:
        """The end of its log, for an error message."""
        return "\n".join(f"  {line}" for line in self.text().splitlines()[-count:])

    def signal(self, number: signal.Signals) -> None:
        """Send a signal (SIGTERM: warm shutdown; SIGSTOP, SIGCONT: a process that hangs)."""
        if number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
            self.stopping = True
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait for the end. With prefork, the children are left to notice it."""
        self.signal(signal.SIGKILL)
        self.process.wait()

    def wait(self, seconds: float = STOP_SECONDS) -> int:
        """Its exit code, once it has ended."""
        return self.process.wait(seconds)

    def stop(self, seconds: float = STOP_SECONDS) -> int:
        """Warm shutdown, and a kill if that takes too long."""
        if self.alive:
            self.signal(signal.SIGTERM)
        return self.end(time.monotonic() + seconds, lambda: False)

    def end(self, deadline: float, in_a_hurry: Callable[[], bool]) -> int:
        """Wait for the end until a moment (or until it is urgent), then kill."""
        while self.alive and time.monotonic() < deadline and not in_a_hurry():
            time.sleep(POLL_SECONDS)
        if self.alive:
            self.process.send_signal(signal.SIGCONT)  # a stopped process can be killed, too
            self.kill()
        return self.process.wait()


class Stop(SystemExit):
    """SIGINT, SIGTERM or SIGHUP came; raised once, in the main thread."""


class Signals:
    """What the user wants: the first signal ends the work, another one hurries the end."""

    def __init__(self) -> None:
        """Begin with none."""
        self._ending = False
        self.urgent = False
        """A signal came while things were ending already."""

    def end(self) -> None:
        """Note that things are ending: from now on a signal does not unwind, it only hurries."""
        self._ending = True

    def __call__(self, number: int, _frame: object) -> None:
        """Handle a signal."""
        if self._ending:
            self.urgent = True
            return
        self._ending = True
        raise Stop(128 + number)


@contextmanager
def heeding_signals() -> Iterator[Signals]:
    """Turn SIGINT, SIGTERM and SIGHUP into one `Stop`, so that every `with` gets to its end."""
    signals = Signals()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signals) for number in numbers}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def repeatedly(seconds: float, act: Callable[[], object], name: str) -> Iterator[None]:
    """Do something every so many seconds, in a thread of its own, as long as the `with` lasts."""
    done = threading.Event()

    def run() -> None:
        while not done.wait(seconds):
            act()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(5)


class Fleet:
    """Starts Celery processes, and ends every one of them."""

    def __init__(
        self,
        env: Mapping[str, str],
        logs: Path,
        *,
        signals: Signals | None = None,
        root: Path = ROOT,
        python: str = sys.executable,
    ) -> None:
        """Processes get this environment and log to files in this folder.

        They run the code of this checkout with this Python, unless another `root` is given.
        """
        self.env = dict(env)
        self._root = root
        self._python = python
        self.logs = logs
        self.members: list[Member] = []
        self._signals = signals or Signals()
        logs.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        """Begin with no process."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop everybody."""
        self.stop()

    def worker(  # noqa: PLR0913  # the options of a worker
        self,
        name: str,
        *,
        pool: str | None = None,
        concurrency: int | None = None,
        queues: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> Member:
        """Start `celery -A tasks worker`; it is not ready yet when this returns."""
        arguments = ["worker", "--loglevel=INFO", f"--hostname={name}@%h"]
        if pool:
            arguments.append(f"--pool={pool}")
        if concurrency:
            arguments.append(f"--concurrency={concurrency}")
        if queues:
            arguments.append(f"--queues={','.join(queues)}")
        return self.start(name, [*arguments, *options], ready_when=" ready.", env=env)

    def beat(self, schedule: Path, *, env: Mapping[str, str] | None = None) -> Member:
        """Start `celery -A tasks beat` with its schedule in this file."""
        arguments = ["beat", "--loglevel=INFO", f"--schedule={schedule}", "--pidfile="]
        return self.start("beat", arguments, ready_when="beat: Starting", env=env)

    def flower(self, port: int, *, env: Mapping[str, str] | None = None) -> Member:
        """Start Flower on this machine alone, so that its buttons may work without a password."""
        arguments = ["flower", "--address=127.0.0.1", f"--port={port}"]
        more = {"FLOWER_UNAUTHENTICATED_API": "true", **(env or {})}
        return self.start("flower", arguments, ready_when="Connected to", env=more)

    def start(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        ready_when: str,
        env: Mapping[str, str] | None = None,
        app: str = "tasks",
    ) -> Member:
        """Start `celery -A tasks …`, in a session of its own: the terminal's Ctrl-C is for us."""
        log = self.logs / f"{name}.log"
        celery = [self._python, "-m", "celery", "-A", app, "--quiet", *arguments]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-S", TETHERED, str(os.getpid()), *celery],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**self.env, **(env or {})},
                cwd=self._root,
                start_new_session=True,
            )
        member = Member(name, process, log, ready_when)
        self.members.append(member)
        return member

    def wait_until_ready(self, *members: Member, seconds: float = READY_SECONDS) -> None:
        """Wait until these (or all) are ready; raise `FleetError` if one is not, or ends."""
        deadline = time.monotonic() + seconds
        waiting = list(members or self.members)
        while waiting := [member for member in waiting if not member.ready]:
            self.check(waiting)
            if time.monotonic() > deadline:
                slow = waiting[0]
                raise FleetError(
                    f"{slow.name} was not ready within {seconds:.0f} s.\n{slow.last_lines()}"
                )
            time.sleep(POLL_SECONDS)

    def check(self, members: Iterable[Member] | None = None) -> None:
        """Raise `FleetError` if one of these (or of all) has ended without being asked to."""
        for member in self.members if members is None else members:
            if not member.alive and not member.stopping:
                code = member.process.returncode
                raise FleetError(
                    f"{member.name} ended by itself ({_how(code)}).\n{member.last_lines()}"
                )

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """End everybody: the last started first, workers together. Urgent: kill them at once."""
        self._signals.end()
        others = [m for m in reversed(self.members) if m.ready_when != " ready."]
        workers = [m for m in reversed(self.members) if m.ready_when == " ready."]
        for group in (others, workers):
            for member in group:
                if member.alive:
                    member.signal(signal.SIGTERM)
            deadline = time.monotonic() + seconds
            for member in group:
                member.end(deadline, lambda: self._signals.urgent)


def _how(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
