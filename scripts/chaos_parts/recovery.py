"""How long the fleet took to get over each fault, from the trail that the database kept.

A killed owner: from the kill until the chat runs again or rests. An owner that leaves: from the
release of the chat until it runs elsewhere, and from the signal until the process is gone. A stop:
from the request until the chat is free. A server: until each busy chat moved again.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scripts.chaos_parts.crew import Life
from scripts.chaos_parts.journal import Fault, Journal, Stop
from scripts.chaos_parts.picture import Move
from scripts.chaos_parts.schedule import Kind

DEATHS = {Kind.WORKER_KILL, Kind.CHILD_KILL, Kind.PARENT_KILL, Kind.WORKER_STOP}
LEAVINGS = {
    Kind.WORKER_TERM,
    Kind.WORKER_QUIT,
    Kind.WORKER_INT_TWICE,
    Kind.CONTROL_SHUTDOWN,
}
SERVERS = {Kind.BROKER_RESTART, Kind.FLUSH, Kind.CUT_CLIENTS, Kind.DATABASE_RESTART}
FREE = ("waiting", "pending", "error")


@dataclass(frozen=True)
class Figures:
    """A distribution of seconds."""

    n: int
    p50: float
    p99: float
    longest: float


def figures(seconds: Sequence[float]) -> Figures | None:
    """Describe a sample; nothing if there is none."""
    if not seconds:
        return None
    ordered = sorted(seconds)

    def at(share: float) -> float:
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    return Figures(len(ordered), at(0.5), at(0.99), ordered[-1])


def measure(
    journal: Journal, moves: dict[str, list[Move]], lives: Iterable[Life]
) -> dict[str, Figures]:
    """All figures, by what was measured."""
    samples: dict[str, list[float]] = defaultdict(list)
    for fault in journal.faults:
        for chat_id in fault.hit:
            _one(samples, fault, moves.get(chat_id, []))
    for stop in journal.stops:
        took = _freed(stop, moves.get(stop.chat_id, []))
        if took is not None and stop.turn_id is not None:
            samples[f"{stop.by}: asked → free"].append(took)
    for life in lives:
        if life.leaving in LEAVINGS and life.told_at and life.ended_at:
            samples[f"{life.leaving}: told → gone"].append(life.ended_at - life.told_at)
    return {name: made for name in sorted(samples) if (made := figures(samples[name])) is not None}


def _one(samples: dict[str, list[float]], fault: Fault, moves: list[Move]) -> None:
    later = [move for move in moves if move.at > fault.at]
    if fault.kind in DEATHS:
        owned = [move for move in moves if move.at <= fault.at and move.new_status == "running"]
        lease = owned[-1].new_lease if owned else None
        for move in later:
            if (move.new_status == "running" and move.new_lease != lease) or (
                move.new_status in ("waiting", "error")
            ):
                samples[f"{fault.kind}: killed → runs again"].append(move.at - fault.at)
                return
    elif fault.kind in LEAVINGS:
        for place, move in enumerate(later):
            left = move.old_status == "running" and move.new_status == "pending"
            if left and move.pid in fault.pids:
                again = next((m for m in later[place + 1 :] if m.new_status == "running"), None)
                if again is not None and again.pid not in fault.pids:
                    samples[f"{fault.kind}: released → runs elsewhere"].append(again.at - move.at)
                return
    elif fault.kind in SERVERS and later:
        samples[f"{fault.kind}: → next move"].append(later[0].at - fault.at)


def _freed(stop: Stop, moves: list[Move]) -> float | None:
    """How long it took until the chat had no owner; nothing if the turn had none to begin with."""
    before = [move for move in moves if move.at <= stop.at]
    if not before or before[-1].new_status not in ("running", "interrupting"):
        return None
    if stop.turn_id not in (None, before[-1].turn_id):
        return None
    for move in moves:
        if move.at > stop.at and move.new_status in FREE:
            return move.at - stop.at
    return None
