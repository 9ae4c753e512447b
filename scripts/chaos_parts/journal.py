"""What was asked of the fleet and what was done to it, with times: the other side of the books.

Written by drivers and faults, read by the audit. It knows only what an app could know: a request
that got no answer is `unknown`, and the audit has to live with either outcome.
"""

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from scripts.chaos_parts.plan import Plan


class Outcome(StrEnum):
    """What an app knows about its request."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Asked:
    """A message that a driver sent, or wrote in place of another."""

    plan: Plan
    mode: str
    """create, queue, steer, interrupt, reject or edit."""
    outcome: Outcome
    asked_at: float
    answered_at: float
    chat_id: str | None = None
    turn_id: str | None = None
    edits: int | None = None
    """The message that it replaces, if it is an edit."""


@dataclass(frozen=True)
class Stop:
    """Somebody asked for a turn's end, in whatever way. Without a turn: whatever ran then."""

    chat_id: str
    turn_id: str | None
    at: float
    by: str
    answered: bool = True
    """Whether the fleet said that it was done."""


@dataclass(frozen=True)
class Compacted:
    """Somebody asked for a summary."""

    chat_id: str
    turn_id: str | None
    at: float
    outcome: Outcome


@dataclass(frozen=True)
class Command:
    """A command whose result nobody waits for. Accepted: the broker took it."""

    task_id: str
    verb: str
    """create_chat, send_message or interrupt."""
    outcome: Outcome
    asked_at: float
    answered_at: float
    plan: Plan | None = None
    chat_id: str | None = None
    turn_id: str | None = None
    """The turn that an interrupt is for, whether it names it or not."""


@dataclass(frozen=True)
class Wipe:
    """The broker lost everything: what was in it then, and the time in which more came and went."""

    began: float
    ended: float
    task_ids: frozenset[str]


@dataclass(frozen=True)
class Decision:
    """What somebody outside said about a call: allowed, denied, or answered."""

    chat_id: str
    call_id: str
    what: str
    """approve, deny or answer."""
    words: str
    """The answer, or the reason."""
    outcome: Outcome
    asked_at: float
    answered_at: float


@dataclass
class Fault:
    """Something that was done to the fleet."""

    kind: str
    at: float
    victim: str
    ended_at: float | None = None
    hit: tuple[str, ...] = ()
    """Chats that a worker was on when it was hit."""
    pids: tuple[int, ...] = ()
    """The processes that were hit."""


KILLS = frozenset(
    f"SIGKILL of {whom}" for whom in ("a worker", "the control worker", "a prefork parent")
)
GAP_SECONDS = 1.0


@dataclass(frozen=True)
class Outage:
    """A time in which a server was away, or all connections to it were cut."""

    server: str
    began: float
    ended: float


@dataclass
class Journal:
    """All of it. Safe from any thread."""

    asked: list[Asked] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    compactions: list[Compacted] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    wipes: list[Wipe] = field(default_factory=list)
    """When everything in Valkey was lost."""
    skipped: list[str] = field(default_factory=list)
    """Faults that found no victim."""
    logs: Path | None = None
    """Where the workers' logs are."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def message(self, asked: Asked) -> None:
        """Note a message."""
        with self._lock:
            self.asked.append(asked)

    def stop(self, stop: Stop) -> None:
        """Note that an end was asked for."""
        with self._lock:
            self.stops.append(stop)

    def decision(self, decision: Decision) -> None:
        """Note what was said about a call."""
        with self._lock:
            self.decisions.append(decision)

    def compaction(self, compacted: Compacted) -> None:
        """Note that a summary was asked for."""
        with self._lock:
            self.compactions.append(compacted)

    def fault(
        self, kind: str, victim: str, hit: Iterable[str] = (), pids: Iterable[int] = ()
    ) -> Fault:
        """Note a fault that happens now."""
        made = Fault(kind, time.time(), victim, hit=tuple(hit), pids=tuple(pids))
        with self._lock:
            self.faults.append(made)
        return made

    def outage(self, server: str, began: float) -> None:
        """Note that a server is back."""
        with self._lock:
            self.outages.append(Outage(server, began, time.time()))

    def command(self, command: Command) -> None:
        """Note a command."""
        with self._lock:
            self.commands.append(command)

    def wiped(self, began: float, task_ids: Iterable[str]) -> None:
        """Note that Valkey has just lost everything, and what was in it."""
        with self._lock:
            self.wipes.append(Wipe(began, time.time(), frozenset(task_ids)))

    def may_be_lost(self, task_id: str) -> bool:
        """Whether the broker may have lost a command's message, or may not have taken it."""
        with self._lock:
            given = [each for each in self.commands if each.task_id == task_id]
            wipes = list(self.wipes)
        return any(
            each.outcome is not Outcome.ACCEPTED
            or any(
                task_id in wipe.task_ids
                or (each.asked_at <= wipe.ended and wipe.began <= each.answered_at)
                for wipe in wipes
            )
            or self.fell_into_the_gap(each)
            for each in given
        )

    def fell_into_the_gap(self, command: Command) -> bool:
        """Whether a worker was killed that may have taken it from Redis, and not noted it yet.

        kombu does these in two commands, so what is in a killed worker's socket is lost. A worker
        that has begun with a message has logged that; such a command is never excused.
        """
        killed = any(
            kind in KILLS and 0 <= at - command.answered_at <= GAP_SECONDS
            for kind, at in ((fault.kind, fault.at) for fault in [*self.faults])
        )
        if not killed or self.logs is None:
            return False
        words = f"[{command.task_id}] received"
        return not any(words in log.read_text(errors="replace") for log in self.logs.glob("*.log"))

    def skip(self, kind: str) -> None:
        """Note a fault that did not take place."""
        with self._lock:
            self.skipped.append(kind)
