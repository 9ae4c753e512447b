"""A clock for this process: something to be done at a moment, without holding a slot.

One thread, however many timers. It is a convenience: a timer that is lost with its process is
caught by the sweep.
"""

import heapq
import itertools
import os
import threading
import time
from collections.abc import Callable

SLACK_SECONDS = 0.05
"""A little late rather than a little early: Postgres' clock decides whether a chat is due."""

_lock = threading.Condition()
_waiting: list[tuple[float, int, Callable[[], None]]] = []
_numbers = itertools.count()
_threads: dict[int, threading.Thread] = {}


def after(seconds: float, act: Callable[[], None]) -> None:
    """Do something in so many seconds."""
    with _lock:
        heapq.heappush(_waiting, (time.monotonic() + seconds + SLACK_SECONDS, next(_numbers), act))
        _ensure_thread()
        _lock.notify()


def _ensure_thread() -> None:
    if os.getpid() not in _threads:
        _threads.clear()
        thread = threading.Thread(target=_run, name="timers", daemon=True)
        _threads[os.getpid()] = thread
        thread.start()


def _run() -> None:
    while True:
        with _lock:
            while not _waiting or _waiting[0][0] > time.monotonic():
                _lock.wait(_waiting[0][0] - time.monotonic() if _waiting else None)
            _, _, act = heapq.heappop(_waiting)
        act()
