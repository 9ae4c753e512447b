"""On threads: the next step of a turn, taken by the very thread that has done the one before.

The way through the main loop and back to a thread of the pool takes longer than all that Celery
does with a task. So a thread that is done with its task looks whether that has left another for it
(`bell.py`), and takes it as the main loop would: the same request, the same events, the same id to
revoke it by. Only the pool's queue is left out. A worker that is full leaves none: whoever waits
for a place comes first.
"""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future

from tasks.celery_patches.pools import ThreadPool

log = logging.getLogger(__name__)


class _Thread(threading.local):
    """What one thread has to do."""

    is_of_the_pool = False
    receive: Callable[[], None] | None = None
    """Gives what comes next to Celery, which gives it to the pool."""
    receives = False
    task: Callable[[], None] | None = None
    """What the pool was given meanwhile."""


_this = _Thread()


def leave(receive: Callable[[], None]) -> bool:
    """Have this thread receive something when its task is done.

    False if it is none of the pool, or is to receive something else.
    """
    if not _this.is_of_the_pool or _this.receive is not None:
        return False
    _this.receive = receive
    return True


def serve_one_after_the_other() -> None:
    """Have the threads of a pool look for what was left to them."""

    def submit(self: ThreadPool, task: Callable[[], None]) -> "Future[None]":
        if not _this.receives:
            return self.executor.submit(serve, task)  # type: ignore[no-any-return]
        _this.task = task
        return Future()

    ThreadPool.submit = submit  # type: ignore[method-assign]


def serve(task: Callable[[], None]) -> None:
    """Do one task, then what it has left, and so on."""
    _this.is_of_the_pool = True
    todo: Callable[[], None] | None = task
    while todo is not None:
        _this.receive = None
        try:
            todo()
        except BaseException:  # the pool would keep it to itself, and what is left would be lost
            log.exception("Celery failed around a task")
        todo = _next()


def _next() -> Callable[[], None] | None:
    if _this.receive is None:
        return None
    _this.receives = True
    try:
        _this.receive()
    finally:
        _this.receives = False
    task, _this.task = _this.task, None
    return task
