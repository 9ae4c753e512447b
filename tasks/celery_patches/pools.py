"""Celery's pools: that a worker ends when it should, and that no slot is lost.

Celery 5.7 stops a pool within a signal's handler on a cold shutdown, and that waits for what is at
work. If the main thread was in the middle of a line of the log, it holds the log's lock, for which
threads wait in turn; if it was handing a task to the pool, it holds the executor's lock, or a
prefork child waits for the rest of the task: the worker hangs until it is killed. So the handler
leaves the pool alone; the main thread stops it, once it is out of it (`terminate`).
"""

import logging
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from billiard import pool as billiard_pool
from billiard.einfo import ExceptionInfo
from celery.concurrency import get_implementation, prefork, thread
from celery.concurrency.base import apply_target
from celery.concurrency.thread import ApplyResult
from celery.utils import log as celery_log

from tasks import stopping
from tasks.celery_patches.replacing import Replace

log = logging.getLogger(__name__)

READ_SECONDS = 3.0
"""How long a child that leaves waits until its last report is read."""


def mended(pool: Any) -> Any:
    """The pool that takes the place of this one of Celery's."""
    if isinstance(pool, str) and pool not in ("prefork", "processes", "threads"):
        return pool  # not to be imported here: gevent's changes the process
    chosen = get_implementation(pool)
    return {prefork.TaskPool: PreforkPool, thread.TaskPool: ThreadPool}.get(chosen, chosen)


class ThreadPool(thread.TaskPool):  # type: ignore[misc]  # Celery has no types
    """Threads that always say that their task is over, and that are not waited for too early."""

    def on_apply(
        self, target: Callable[..., Any], args: Any = None, kwargs: Any = None, **options: Any
    ) -> ApplyResult:
        """Give a task to a thread.

        A message may have been under way when a cold shutdown came (Celery 5.7 hands it to the pool
        that takes none any more, and the RuntimeError ends the worker as "unrecoverable"). It is
        not begun, and so not acknowledged: it goes back.
        """
        heard = {name: options.get(name) for name in ("callback", "accept_callback")}
        task = partial(apply_target, target, args, kwargs, **heard)
        try:
            return ApplyResult(self.submit(partial(run, task, options.get("error_callback"))))
        except RuntimeError:
            if not stopping.this.asked:
                raise
            return ApplyResult(Future())

    def submit(self, task: Callable[[], None]) -> "Future[None]":
        """Have a thread do it."""
        return self.executor.submit(task)  # type: ignore[no-any-return]

    def on_stop(self) -> None:
        """Wait for the threads, but not in a signal handler."""
        if not celery_log._in_sighandler:  # noqa: SLF001
            super().on_stop()

    on_terminate = on_stop


def run(task: Callable[[], None], error_callback: Callable[[Any], None] | None) -> None:
    """Run a task in a thread; if Celery fails around it, say that it is over nevertheless.

    Celery 5.7, prefork's fault in celery/celery#5642: if neither the task's result nor its failure
    can be stored (Redis out of memory), or what is to follow it cannot be read (a malformed
    `chain`), the exception leaves the task's trace. The threads pool keeps it to itself: the
    request counts as running for ever, and a worker whose slots are all lost like this is silent.
    """
    try:
        task()
    except BaseException:
        log.exception("Celery failed around a task")
        try:
            if error_callback is not None:
                error_callback(ExceptionInfo())
        except BaseException:
            log.exception("Celery could not be told that a task has failed")


class PreforkPool(prefork.TaskPool):  # type: ignore[misc]  # Celery has no types
    """Children that are not waited for too early, and that are counted also when they are gone."""

    def on_stop(self) -> None:
        """Wait for the children, but not in a signal handler."""
        if not celery_log._in_sighandler:  # noqa: SLF001
            super().on_stop()

    on_terminate = on_stop

    @property
    def num_processes(self) -> int:
        """How many there are; none, once the pool is gone.

        Celery 5.7 asks before it takes a message (on Redis, with `worker_disable_prefetch`), also
        after a cold shutdown, and the AttributeError ends the worker as "unrecoverable".
        """
        return int(super().num_processes) if self._pool is not None else 0


def leave_without_a_reader(replace: Replace) -> None:
    """Let a prefork child leave, though its last report is not read.

    billiard 4.3 with celery 5.7: on a warm shutdown Celery forgets a task that was handed to a
    child and not heard of since; so nobody reads that it has ended. The child waits for that half a
    minute, and the worker for the child: longer than a deploy waits. The report is for the log: the
    message is acknowledged or given back, and the result is stored, without it.
    """
    pause = billiard_pool.GUARANTEE_MESSAGE_CONSUMPTION_RETRY_INTERVAL
    limit = int(READ_SECONDS / pause)
    replace(billiard_pool, "GUARANTEE_MESSAGE_CONSUMPTION_RETRY_LIMIT", limit)
