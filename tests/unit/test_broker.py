"""What is mended in Celery's pools."""

import threading

import billiard
import billiard.pool
import pytest
from billiard.pool import RUN
from celery.concurrency.prefork import TaskPool as ForkPool
from celery.concurrency.thread import TaskPool
from celery.utils.log import in_sighandler

import tasks.edges  # noqa: F401  # it does the mending
from tests.waiting import wait_until


def test_a_cold_shutdown_waits_for_no_thread_until_its_signal_handler_is_over() -> None:
    """The handler may have come upon the main thread with a lock that the pool's threads want."""
    pool, held = TaskPool(limit=1), threading.Lock()
    pool.start()
    held.acquire()
    done: list[str] = []

    def want_the_lock() -> None:
        with held:
            done.append("step")

    pool.apply_async(want_the_lock, (), {}, callback=lambda _: None)
    wait_until(lambda: len(pool.executor._threads) == 1)
    stopping = threading.Thread(target=_stop, args=(pool,), daemon=True)
    stopping.start()
    stopping.join(5)
    assert not stopping.is_alive(), "the handler waits for a thread"
    assert done == []
    held.release()
    pool.terminate()
    assert done == ["step"], "the main thread did not wait for it either"


def test_a_cold_shutdown_may_come_while_the_main_thread_hands_a_task_to_the_pool() -> None:
    """It holds the executor's lock then, until the new thread has begun: a while on a busy machine.

    The handler runs in that very thread: to want the lock would be to wait for itself.
    """
    pool = TaskPool(limit=1)
    pool.start()
    with pool.executor._shutdown_lock:
        stopping = threading.Thread(target=_stop, args=(pool,), daemon=True)
        stopping.start()
        stopping.join(5)
        assert not stopping.is_alive(), "the handler wants the executor's lock"
    pool.terminate()
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.executor.submit(print)


def test_a_cold_shutdown_may_come_while_the_main_thread_writes_a_task_to_a_child() -> None:
    """The child waits for the rest of it, and in the handler the main thread for the child."""
    forked: list[str] = []

    class Written:
        _state = RUN

        def close(self) -> None:
            forked.append("close")

        def join(self) -> None:
            forked.append("join")

    pool = ForkPool(limit=1)
    pool._pool = Written()
    _stop(pool)
    assert forked == []
    pool.terminate()
    assert forked == ["close", "join"]


def test_a_child_leaves_soon_though_nobody_reads_its_last_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A warm shutdown forgets a task that it has not heard of again, and so never reads its end.

    Its child would wait half a minute for that: longer than Kubernetes waits for the worker.
    """
    slept: list[float] = []
    monkeypatch.setattr(billiard.pool.time, "sleep", slept.append)
    child = billiard.pool.Worker.__new__(billiard.pool.Worker)
    child.on_ready_counter = billiard.Value("i", 6)
    assert not child._ensure_messages_consumed(completed=7)
    assert 1 < sum(slept) < 5


def _stop(pool: TaskPool | ForkPool) -> None:
    with in_sighandler():
        pool.stop()
