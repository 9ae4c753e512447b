"""Workers that go with chats in mid-stream, and how soon another one goes on with those.

Two workers, one for control and a real beat, with the product's own timings; the database keeps a
trail of who had which chat when (as in `make chaos`, whose figures have the same names). Each time
the one that has more chats goes, and a fresh one takes its place.
"""

import signal
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from models.engine import make_engine
from scripts.bench_parts.place import Place, own_folder
from scripts.bench_parts.running import PATIENCE, Rejoinder
from scripts.bench_parts.task import Task
from scripts.chaos_parts import trail
from scripts.fleet import Member

HURRIED = {"REJOINDER_HEARTBEAT_SECONDS": "0.5", "REJOINDER_DEAD_AFTER_SECONDS": "2"}
SMALL_DRAIN = "0.1"
PAIR = 2
LONG_WORDS = 6000
"""Two minutes of them: nobody comes to an end by itself."""
RELEASE = ("running", "pending")
_MOVES = """
SELECT chat_id::text, old_status, new_status, split_part(worker, ':', 2)::int,
       extract(epoch FROM at)::float8
  FROM chaos.trail WHERE worker IS NOT NULL ORDER BY n
"""
_numbers = count()


@dataclass(frozen=True)
class Move:
    """A line of the trail: a chat's status changed, under this process."""

    chat_id: str
    old: str
    new: str
    pid: int
    at: float


class Pair(Rejoinder):
    """Two workers of steps, one of control, and a beat."""

    def __init__(self, place: Place) -> None:
        """Begin to keep a trail."""
        super().__init__(place, "threads")
        engine = make_engine(place.database_url)
        trail.install(engine)
        engine.dispose()
        self.workers: list[Member] = []

    def start(self) -> None:
        """Start all of them."""
        self.fleet.worker("control", queues=["rejoinder.control"], concurrency=8)
        self.fleet.beat(own_folder(self.place.logs, "beat") / "schedule")
        for _ in range(PAIR):
            self.hire()

    def hire(self) -> Member:
        """Start one more worker of steps."""
        name = f"steps{next(_numbers)}"
        self.workers.append(self.fleet.worker(name, queues=["rejoinder.steps"]))
        return self.workers[-1]

    def moves(self) -> dict[str, list[Move]]:
        """All that happened, by chat."""
        found: dict[str, list[Move]] = {}
        for row in self.place.execute(_MOVES, database=self.place.database):
            found.setdefault(row[0], []).append(Move(*row))
        return found


@dataclass(frozen=True)
class Going:
    """A way for workers to go."""

    title: str
    number: signal.Signals
    in_flight: int
    """Chats that each worker has by then, about."""
    taken: dict[str, list[float]]
    """Seconds, by what was measured."""

    def once(self, pair: Pair) -> None:
        """Make the pair complete, let the busier one go, and see its chats go on elsewhere."""
        while len(pair.workers) < PAIR:
            pair.hire()
        pair.fleet.wait_until_ready(*pair.workers)
        tasks = [
            Task(f"hand{next(_numbers)}", calls=1, tokens=LONG_WORDS, pace=0.02)
            for _ in range(2 * self.in_flight)
        ]
        made = {each["chat_id"]: task for each, task in zip(pair.create(tasks), tasks, strict=True)}
        model = pair.place.model
        _until(lambda: len(model.look().open) >= len(tasks))
        moves = pair.moves()
        has = {w.name: {each for each in made if _has(w, moves[each])} for w in pair.workers}
        victim = max(pair.workers, key=lambda worker: len(has[worker.name]))
        held = has[victim.name]
        pair.workers.remove(victim)
        began = time.time()
        victim.signal(self.number)
        if self.number is signal.SIGKILL:
            pair.hire()  # it has time to start meanwhile
        _until(lambda: all(_went_on(pair.moves()[each], victim, began) for each in held))
        _until(lambda: len(model.look(keep=True).open) >= len(tasks))
        came = {call.task: call.came for call in model.look().open}
        moves = pair.moves()
        for chat_id in held:
            self._note(moves[chat_id], victim, began)
            self._take("signal -> next model call", came[made[chat_id].id] - began)
        _come_to_rest(pair, made)
        victim.wait(60)

    def _note(self, moves: list[Move], victim: Member, began: float) -> None:
        on = _went_on(moves, victim, began)
        if on is None:
            return
        self._take("signal -> runs elsewhere", on.at - began)
        left = [m for m in moves if began < m.at < on.at and (m.old, m.new) == RELEASE]
        if left and self.number is not signal.SIGKILL:
            self._take("released -> runs elsewhere", on.at - left[-1].at)

    def _take(self, what: str, seconds: float) -> None:
        self.taken.setdefault(f"{self.title}: {what}", []).append(seconds)


def hand_over(asked: Namespace, place: Place) -> dict[str, list[float]]:
    """Let workers go, in each way, so many times; seconds by what was measured."""
    taken: dict[str, list[float]] = {}
    default = Going("SIGTERM, default drain", signal.SIGTERM, asked.in_flight, taken)
    killed = Going("SIGKILL", signal.SIGKILL, asked.in_flight, taken)
    small = Going(f"SIGTERM, drain {SMALL_DRAIN} s", signal.SIGTERM, asked.in_flight, taken)
    if asked.size == "tiny":
        _all_go(place.apart(**HURRIED), [killed] * asked.kills)
    elif asked.kills:
        half = (asked.kills + 1) // 2  # each takes the drain time
        _all_go(place.apart(), [default] * half + [killed] * asked.kills)
        _all_go(place.apart(REJOINDER_DRAIN_SECONDS=SMALL_DRAIN), [small] * asked.kills)
    return taken


def _all_go(place: Place, goings: Sequence[Going]) -> None:
    with Pair(place) as pair:
        for going in goings:
            going.once(pair)


def _has(worker: Member, moves: list[Move]) -> bool:
    return moves[-1].pid == worker.pid and moves[-1].new == "running"


def _went_on(moves: list[Move], victim: Member, began: float) -> Move | None:
    """When another worker took the chat."""
    later = (m for m in moves if m.at > began and m.new == "running" and m.pid != victim.pid)
    return next(later, None)


def _come_to_rest(pair: Pair, made: Mapping[str, Task]) -> None:
    for chat_id in made:
        pair.client.interrupt(chat_id)
    _until(lambda: all(pair.moves()[each][-1].new == "waiting" for each in made))


def _until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not done():
        if time.monotonic() > deadline:
            raise RuntimeError("a worker went, and its chats did not go on")
        time.sleep(0.1)
