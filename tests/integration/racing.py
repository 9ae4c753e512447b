"""Two transactions against each other: in either order, each seen to wait, or side by side.

Each racer has a connection of its own. Forced, the first one is held right before its commit, with
its locks taken and its rows written, until the second one is seen to wait in Postgres (or has
finished, where it must not wait). Free, both start at a barrier. A refusal is an outcome; anything
else that is raised (a deadlock, a lock timeout) fails the test.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from sqlalchemy import event, text

from models.engine import autocommit, make_engine, transaction
from rejoinder.core.errors import Refused
from rejoinder.core.parts import load, text_of
from tests.chats import World
from tests.integration.invariants import assert_invariants

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from uuid import UUID

    from sqlalchemy import Connection, Engine

    Act = Callable[[Engine], Any]

LONGEST = 20.0  # seconds that any one step of a race may take; a lock times out earlier


class Order(Enum):
    """Who is first."""

    LEFT = "left first"
    RIGHT = "right first"
    FREE = "side by side"


@dataclass(frozen=True)
class Outcome:
    """What both got (a value, or the refusal), and whether the second had to wait for the first."""

    left: Any
    right: Any
    waited: bool | None


class Racer:
    """One side: an engine with one connection for transactions and one for single statements.

    It can be held right before a commit.
    """

    def __init__(self, url: str) -> None:
        """Connect, and learn by which process ids Postgres knows this side."""
        self.engine = make_engine(url, pool_size=1, max_overflow=0)
        self.pids: list[int] = []
        for engine in (self.engine, autocommit(self.engine)):
            with engine.connect() as connection:
                self.pids.append(connection.scalar(text("SELECT pg_backend_pid()")) or 0)
        self.holding = 0  # which of its transactions to hold, counted from 1
        self.executed, self.go = threading.Event(), threading.Event()
        event.listen(self.engine, "commit", self._before_commit)
        event.listen(autocommit(self.engine), "before_cursor_execute", self._before_statement)
        event.listen(autocommit(self.engine), "after_cursor_execute", self._after_statement)

    def run(self, act: Act, start: threading.Barrier | None = None) -> Any:
        """Do it; a refusal is a value."""
        try:
            if start is not None:
                start.wait(LONGEST)
            return act(self.engine)
        except Refused as refusal:
            return refusal
        finally:
            self.executed.set()

    def hold(self, transaction_number: int) -> None:
        """Have the commit of its first (or a later) transaction wait for `go`."""
        self.executed.clear()
        self.go.clear()
        self.holding = transaction_number

    def _before_commit(self, connection: Connection) -> None:
        # A sweep has several transactions: those that have locked or written a row count.
        if not self.holding:
            return
        if connection.scalar(text("SELECT pg_current_xact_id_if_assigned()")) is None:
            return
        self.holding -= 1
        if not self.holding:
            self.executed.set()
            assert self.go.wait(LONGEST), "nobody let the first racer go on"

    # A statement that is a transaction of its own has no commit to stop at: while it is held, it
    # is run in a transaction that is committed right behind it.
    def _before_statement(self, connection: Connection, *_rest: object) -> None:
        driver: Any = connection.connection.driver_connection
        if self.holding and driver.autocommit:
            driver.autocommit = False
            connection.info["alone"] = True

    def _after_statement(self, connection: Connection, *_rest: object) -> None:
        if connection.info.pop("alone", False):
            driver: Any = connection.connection.driver_connection
            self._before_commit(connection)
            driver.commit()
            driver.autocommit = True


@contextmanager
def track_for(engine: Engine, order: Order) -> Iterator[Track]:
    """A track on this database, put away at the end."""
    track = Track(engine, order)
    try:
        yield track
    finally:
        track.close()


class Track:
    """A database, two racers, and the order in which they meet."""

    def __init__(self, engine: Engine, order: Order) -> None:
        """Connect both racers."""
        self.world = World(engine)
        self.order = order
        url = engine.url.render_as_string(hide_password=False)
        self.left, self.right = Racer(url), Racer(url)
        self.threads = ThreadPoolExecutor(2)

    def close(self) -> None:
        """Let go of threads and connections."""
        self.threads.shutdown()
        self.left.engine.dispose()
        self.right.engine.dispose()

    def rounds(self) -> Iterator[int]:
        """Number the rounds; after each, the whole database must be in order."""
        for number in range(50 if self.order is Order.FREE else 12):
            self._all_workers_live()  # however slow the machine is
            yield number
            assert_invariants(self.world.engine)

    def race(self, left: Act, right: Act, *, waits: bool = True, hold: int = 1) -> Outcome:
        """Run both; forced, the second must wait for the first (or, if told so, must not).

        `hold` says in which of its transactions the left one is held, if it comes first.
        """
        if self.order is Order.FREE:
            outcome = self._free(left, right)
        elif self.order is Order.LEFT:
            outcome = self._forced(self.left, left, self.right, right, hold)
        else:
            swapped = self._forced(self.right, right, self.left, left, 1)
            outcome = Outcome(swapped.right, swapped.left, swapped.waited)
        assert outcome.waited in (None, waits), f"the second one waited: {outcome.waited}"
        return outcome

    def _forced(self, first: Racer, act: Act, second: Racer, then: Act, hold: int) -> Outcome:
        first.hold(hold)
        one: Future[Any] = self.threads.submit(first.run, act)
        assert first.executed.wait(LONGEST), "the first racer never came to its commit"
        two: Future[Any] = self.threads.submit(second.run, then)
        try:
            waited = self._waits(second, two)
        finally:
            first.go.set()
        return Outcome(one.result(LONGEST), two.result(LONGEST), waited)

    def _all_workers_live(self) -> None:
        with self.world.engine.begin() as connection:
            connection.execute(text("UPDATE rejoinder.workers SET seen_at = clock_timestamp()"))

    def _waits(self, racer: Racer, running: Future[Any]) -> bool:
        """Watch until Postgres says that the racer waits for a lock (true), or it has ended."""
        end = time.monotonic() + LONGEST
        while time.monotonic() < end:
            if wait([running], timeout=0.001).done:
                return False
            if self.world.read(
                "SELECT FROM pg_stat_activity WHERE pid = ANY(:pids) AND wait_event_type = 'Lock'",
                pids=racer.pids,
            ):
                return True
        raise AssertionError("the second racer neither waits nor ends")

    def _free(self, left: Act, right: Act) -> Outcome:
        start = threading.Barrier(2)
        one = self.threads.submit(self.left.run, left, start)
        two = self.threads.submit(self.right.run, right, start)
        return Outcome(one.result(LONGEST), two.result(LONGEST), None)


def tx(transition: Callable[..., Any], *args: Any, **kwargs: Any) -> Act:
    """Make a racer's act of one transition in a transaction of its own."""

    def act(engine: Engine) -> Any:
        with transaction(engine) as session:
            return transition(session, *args, **kwargs)

    return act


def refused(outcome: object, kind: type[Refused]) -> bool:
    """Whether it was refused, and if so, that it was refused like this and with advice."""
    if isinstance(outcome, Refused):
        assert isinstance(outcome, kind), f"refused as {outcome!r}"
        assert outcome.advice
        return True
    return False


def history(world: World, chat_id: UUID) -> list[tuple[str, str]]:
    """What a reader of the chat sees: who said what, in order."""
    rows = world.read(
        "SELECT role, parts FROM rejoinder.messages"
        " WHERE chat_id = :id AND NOT deleted ORDER BY id",
        id=chat_id,
    )
    return [(row["role"], text_of(load(row["parts"]))) for row in rows]


def queue(world: World, chat_id: UUID) -> list[str]:
    """What waits in the chat's queue, in order."""
    rows = world.read(
        "SELECT parts FROM rejoinder.queued_messages WHERE chat_id = :id ORDER BY position",
        id=chat_id,
    )
    return [text_of(load(row["parts"])) for row in rows]


def users(world: World, chat_id: UUID) -> list[str]:
    """The user's messages, in order: those in history, then those in the queue."""
    spoken = [said for role, said in history(world, chat_id) if role == "user"]
    return spoken + queue(world, chat_id)


def silence(world: World, worker_id: UUID, seconds: int = 60) -> None:
    """Let a worker have been silent for so long."""
    with world.engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE rejoinder.workers SET seen_at = clock_timestamp()"
                " - make_interval(secs => :seconds) WHERE id = :id"
            ),
            {"id": worker_id, "seconds": seconds},
        )
