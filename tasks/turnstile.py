"""Few threads of a process at work at a time, so that those who stream are heard.

A process runs hundreds of steps on one interpreter. When many answers end together, as many threads
want to store theirs; and the event loop, which takes in the words of all the others, would be one
of hundreds that wait for their turn: words came a second late. What a thread does besides waiting
for a model or a tool, it does behind this, a few at a time.

A courtesy, not a lock: if the database keeps those inside waiting, the others pass by.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue

WIDTH = 4
"""Enough that some can wait for the database while another one computes."""
PATIENCE_SECONDS = 0.5


class Turnstile:
    """Lets some threads in."""

    def __init__(self, width: int = WIDTH) -> None:
        """Nobody is inside."""
        self._places: SimpleQueue[None] = SimpleQueue()  # cheaper than a Semaphore, which is Python
        for _ in range(width):
            self._places.put(None)
        self._thread = _Thread()

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Come in, and leave at the end."""
        self._enter()
        try:
            yield
        finally:
            self._leave()

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Leave for a while, if this thread is inside."""
        was_inside = self._thread.is_inside
        if was_inside:
            self._leave()
        try:
            yield
        finally:
            if was_inside:
                self._enter()

    def _enter(self) -> None:
        self._thread.is_inside = True
        try:
            self._places.get(timeout=PATIENCE_SECONDS)
            self._thread.has_place = True
        except Empty:
            self._thread.has_place = False

    def _leave(self) -> None:
        self._thread.is_inside = False
        if self._thread.has_place:
            self._thread.has_place = False
            self._places.put(None)


class _Thread(threading.local):
    is_inside = False
    has_place = False
    """Not one that passed by."""
