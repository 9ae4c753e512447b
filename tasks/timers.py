"""A clock for this process: something to be done at a moment, without holding a slot.

One thread, however many timers. It is a convenience: a timer that is lost with its process is
caught by the sweep.
"""

import heapq
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

SLACK_SECONDS = 0.05
"""A little late rather than a little early: Postgres' clock decides whether a chat is due."""

_lock = threading.Condition()
_waiting: list[tuple[float, int, Callable[[], None]]] = []
_numbers = itertools.count()
_thread: threading.Thread | None = None


def after(seconds: float, act: Callable[[], None]) -> None:
    """Do something in so many seconds."""
    with _lock:
        heapq.heappush(_waiting, (time.monotonic() + seconds + SLACK_SECONDS, next(_numbers), act))
        _ensure_thread()
        _lock.notify()


def _ensure_thread() -> None:
    global _thread  # noqa: PLW0603  # one per process
    if _thread is None:
        _thread = threading.Thread(target=_run, name="timers", daemon=True)
        _thread.start()


def _forget_the_parents() -> None:
    global _lock, _waiting, _thread  # one per process
    _lock, _waiting, _thread = threading.Condition(), [], None


os.register_at_fork(after_in_child=_forget_the_parents)


def _run() -> None:
    while True:
        with _lock:
            while not _waiting or _waiting[0][0] > time.monotonic():
                _lock.wait(_waiting[0][0] - time.monotonic() if _waiting else None)
            _, _, act = heapq.heappop(_waiting)
        try:
            act()
        except Exception:
            log.exception("What was to be done at this moment failed; the sweep will see to it")
