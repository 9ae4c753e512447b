"""What is mended in Celery's pools."""

import threading

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


def _stop(pool: TaskPool) -> None:
    with in_sighandler():
        pool.stop()
