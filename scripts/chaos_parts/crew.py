"""The fleet under test: three step workers, one for control, beat, and another app's worker.

Whoever falls is replaced. It knows who is well (a possible victim), who is leaving and since when,
and how each one went. It does no harm by itself: that is `faults.py`.
"""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from scripts.fleet import Fleet, Member, repeatedly

STEP_WORKERS = 3
# On the command line Celery takes `prefork` for "as configured", and that is threads here.
POOLS = {"threads": "threads", "prefork": "processes"}
CONCURRENCY = {"threads": 20, "prefork": 6}
OTHER_APP, OTHER_CONCURRENCY = "scripts.chaos_parts.other_app", 4
CREW = {"step": STEP_WORKERS, "control": 1, "beat": 1, "other": 1}
"""How many there are of each kind."""
LOOK_SECONDS = 0.05
AT_THE_END = "SIGTERM at the end"
OWN_GROUP = ("--without-mingle", "--without-gossip")
"""Workers that come and go all the time need not introduce themselves to each other."""


@dataclass
class Life:
    """One process of the fleet, from its start to its end."""

    member: Member
    role: str
    """step, control, beat, or other: the worker of another app."""
    leaving: str | None = None
    """What it was told to leave with, if it was."""
    told_at: float | None = None
    ended_at: float | None = None
    code: int | None = None
    paused: bool = False
    family: frozenset[int] = frozenset()
    """Its process ids: itself and, with prefork, its children."""

    @property
    def well(self) -> bool:
        """Whether something can still befall it."""
        return self.member.alive and self.leaving is None and not self.paused and self.member.ready

    def tell(self, how: str) -> None:
        """Note that it is on its way out."""
        self.leaving, self.told_at = how, time.time()
        self.member.stopping = True

    def look(self) -> None:
        """Note its children, or its end."""
        if self.member.alive:
            self.family = self.family | {self.member.pid, *_children(self.member.pid)}
        elif self.ended_at is None:
            self.ended_at, self.code = time.time(), self.member.process.returncode


class Crew:
    """Starts, replaces and watches."""

    def __init__(self, fleet: Fleet, pool: str, schedules: Path) -> None:
        """Begin with nobody."""
        self.fleet = fleet
        self.pool = pool
        self.lives: list[Life] = []
        self._schedules = schedules
        self._numbers = dict.fromkeys(CREW, 0)
        # The kernel ends a tethered process with the thread that started it: that one must stay.
        self._starting = ThreadPoolExecutor(1, "starting")

    def start(self, role: str) -> Life:
        """Start one more of a kind."""
        return self._starting.submit(self._start, role).result()

    def _start(self, role: str) -> Life:
        self._numbers[role] += 1
        name = f"{role}{self._numbers[role]}"
        if role == "beat":
            schedule = self._schedules / name
            arguments = ["beat", "--loglevel=INFO", f"--schedule={schedule}", "--pidfile="]
            member = self.fleet.start(name, arguments, ready_when="beat: Starting")
        elif role == "control":
            queues = ["rejoinder.control"]
            member = self.fleet.worker(name, concurrency=4, queues=queues, options=OWN_GROUP)
        elif role == "other":
            arguments = ["worker", "--loglevel=INFO", f"--hostname={name}@%h", "--pool=prefork"]
            arguments += [f"--concurrency={OTHER_CONCURRENCY}", *OWN_GROUP]
            member = self.fleet.start(name, arguments, ready_when=" ready.", app=OTHER_APP)
        else:
            member = self.fleet.worker(
                name,
                pool=POOLS[self.pool],
                concurrency=CONCURRENCY[self.pool],
                options=OWN_GROUP,
            )
        life = Life(member, role)
        self.lives.append(life)
        return life

    def well(self, role: str = "step") -> list[Life]:
        """Those of a kind that something can befall."""
        return [life for life in list(self.lives) if life.role == role and life.well]

    def present(self, role: str) -> list[Life]:
        """Those of a kind that work, or will soon."""
        return [
            life
            for life in list(self.lives)
            if life.role == role and life.member.alive and life.leaving is None
        ]

    def complete(self) -> None:
        """Start whoever is missing, and wake whoever was stopped."""
        for life in list(self.lives):
            if life.paused and life.member.alive:
                os.killpg(life.member.pid, signal.SIGCONT)
                life.paused = False
        for role, count in CREW.items():
            for _ in range(count - len(self.present(role))):
                self.start(role)

    def wait_until_ready(self) -> None:
        """Wait until all who are to work do."""
        waiting = [life.member for role in self._numbers for life in self.present(role)]
        self.fleet.wait_until_ready(*waiting)

    def end(self, lives: Sequence[Life]) -> None:
        """End these, with all their children, at once."""
        for life in lives:
            with suppress(ProcessLookupError):
                os.killpg(life.member.pid, signal.SIGKILL)
            life.member.process.wait()

    def dismiss(self) -> None:
        """Tell every worker that is left to leave, as a last test."""
        for role in ("step", "control", "other"):
            for life in self.present(role):
                life.tell(AT_THE_END)
                life.member.signal(signal.SIGTERM)

    def kill_leftovers(self) -> list[int]:
        """End what is left of everybody's family; the ids of those who were."""
        left = []
        for life in self.lives:
            for pid in life.family:
                with suppress(psutil.NoSuchProcess, ProcessLookupError):
                    process = psutil.Process(pid)
                    ours = os.getsid(pid) == life.member.pid
                    if ours and process.status() != psutil.STATUS_ZOMBIE:
                        process.kill()
                        left.append(pid)
        return left

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note ends as they come."""

        def watch() -> None:
            for life in list(self.lives):
                life.look()

        with repeatedly(LOOK_SECONDS, watch, "watching"):
            yield


def _children(pid: int) -> list[int]:
    try:
        listed = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    except OSError:
        return []
    return [int(word) for word in listed.split()]
