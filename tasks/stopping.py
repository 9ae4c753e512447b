"""How a worker goes: at once it takes nothing more; what is at work may finish, or is handed back.

`begin` is called where the news arrives (see `edges.py`), also in a signal handler: it sets a flag
and rings a bell, and takes no lock. On prefork the news arrives in the main process and the steps
are in its children; they hear it through a pipe that was made before they were: its end, which
comes also when the main process is killed. `tasks/step.py` asks `asked` before and after a claim.
"""

import logging
import os
import select
import threading
from collections.abc import Callable
from queue import SimpleQueue

log = logging.getLogger(__name__)


class Stopping:
    """Whether and how fast this worker is going. One per process; see `this`."""

    def __init__(self) -> None:
        """Begin at work."""
        self.asked = False
        self.hurried = False
        self._errands: SimpleQueue[Callable[[], object]] = SimpleQueue()  # its put is reentrant
        self._orders: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._started = False
        self._first: Callable[[], None] = _nothing
        self._drain: Callable[[], None] = _nothing
        self._hurry: Callable[[], None] = _nothing
        self.pipes: tuple[tuple[int, int], tuple[int, int]] | None = None
        self.main: int | None = None
        """The main process of a prefork pool."""

    def begin(self, *, now: bool = False) -> None:
        """Take nothing more, and hand back what is not finished in time, or `now`.

        Safe in a signal handler, and any number of times.
        """
        if not self.asked:
            self.asked = True
            self._tell_children(0)
            self._orders.put(self._begin)
        if now and not self.hurried:
            self.hurried = True
            self._tell_children(1)
            self._orders.put(lambda: self._hurry())  # noqa: PLW0108  # as it is by then

    def first(self, act: Callable[[], None]) -> None:
        """Have this done before anything else when the worker goes."""
        self._first = act

    def _begin(self) -> None:
        self._first()
        self._drain()

    def on(self, drain: Callable[[], None], hurry: Callable[[], None]) -> None:
        """Say what to do first, and what to do when there is no more time."""
        self._drain, self._hurry = drain, hurry
        if self.asked:
            drain()
        if self.hurried:
            hurry()

    def errand(self, act: Callable[[], object]) -> None:
        """Have something done by the thread for that: it may talk to the database."""
        self._errands.put(act)

    def start(self) -> None:
        """Start that thread, and one for orders to go, which wait for no errand.

        Not in a signal handler, and after the fork of the pool's children.
        """
        if not self._started:
            self._started = True
            for name, queue in (("errands", self._errands), ("orders", self._orders)):
                threading.Thread(target=_run, args=(queue,), name=name, daemon=True).start()

    def before_forks(self) -> None:
        """Make the pipes, in the main process of a prefork pool."""
        self.pipes = (os.pipe(), os.pipe())
        self.main = os.getpid()

    def listen(self, drain: int, hurry: int) -> None:
        """Hear the main process, in a child: it closes first the one pipe, then the other."""
        listening = threading.Thread(target=self._listen, args=(drain, hurry), name="parent")
        listening.daemon = True
        listening.start()

    @property
    def orphaned(self) -> bool:
        """Whether this is a child whose main process is gone."""
        return self.main is not None and os.getppid() != self.main

    def _listen(self, drain: int, hurry: int) -> None:
        select.select([drain], [], [])
        self.begin()
        select.select([hurry], [], [])
        self.begin(now=True)

    def _tell_children(self, which: int) -> None:
        if self.pipes is None:
            return
        reading, writing = self.pipes[which]
        if writing >= 0:
            told = (reading, -1)
            self.pipes = (told, self.pipes[1]) if which == 0 else (self.pipes[0], told)
            os.close(writing)


def _run(queue: "SimpleQueue[Callable[[], object]]") -> None:
    while True:
        act = queue.get()
        try:
            act()
        except Exception:
            log.exception("An errand failed; the sweep or the heartbeat will see to it")


def _nothing() -> None:
    pass


this = Stopping()


def begin_in_child() -> None:
    """Begin anew in a child of the pool: nothing of the main process' but its pipes."""
    global this  # noqa: PLW0603  # one per process
    pipes, main = this.pipes, this.main
    this = Stopping()
    this.main = main
    this.start()
    if pipes is not None:
        for _, writing in pipes:
            if writing >= 0:
                os.close(writing)
        this.listen(*(reading for reading, _ in pipes))
