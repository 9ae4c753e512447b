"""What is mended in the libraries, each beside the fault of the library alone.

The first test of a pair fails when the library no longer needs the patch: then it goes.
"""

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import billiard
import billiard.pool
import pytest
import redis
from billiard.pool import RUN
from celery.concurrency import prefork, thread
from celery.utils.log import in_sighandler
from celery.worker import control as celery_control
from celery.worker import state as worker_state
from kombu.transport.redis import Channel

from tasks import celery_patches, stopping
from tasks.celery_patches import control, pools, redis_transport
from tests.waiting import wait_until

AnyThreads = type[thread.TaskPool]
AnyPrefork = type[prefork.TaskPool]


@pytest.fixture(autouse=True)
def _a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "this", stopping.Stopping())


def test_nothing_is_replaced_before_a_worker_starts() -> None:
    for replaced in (Channel._connparams, celery_control.Panel.data["revoke"]):
        assert not replaced.__module__.startswith("tasks.")


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ("threads", pools.ThreadPool),
        ("celery.concurrency.thread:TaskPool", "celery.concurrency.thread:TaskPool"),
        (thread.TaskPool, pools.ThreadPool),
        ("prefork", pools.PreforkPool),
        (prefork.TaskPool, pools.PreforkPool),
        ("gevent", "gevent"),
    ],
)
def test_a_worker_gets_a_pool_that_is_mended(
    monkeypatch: pytest.MonkeyPatch, asked: object, given: object
) -> None:
    worker = SimpleNamespace(pool_cls=asked)
    celery_patches.install(worker, print, monkeypatch.setattr)
    assert worker.pool_cls == given


# -- kombu: a worker that holds a message loses its connection ------------------------------------


def lose_the_connection() -> None:
    """As when a channel restores what it holds after Celery has collected its connection."""
    channel = Channel.__new__(Channel)
    channel.connection = SimpleNamespace(client=None)
    channel._connparams()  # type: ignore[no-untyped-call]


def test_kombu_fails_for_a_wrong_reason() -> None:
    with pytest.raises(AttributeError):
        lose_the_connection()


def test_a_lost_connection_is_called_one(monkeypatch: pytest.MonkeyPatch) -> None:
    redis_transport.survive_lost_connections(monkeypatch.setattr)
    with pytest.raises(redis.ConnectionError):
        lose_the_connection()


# -- Celery: a pool is stopped in a signal handler -----------------------------------------------


def stop_in_a_handler(pool: object) -> threading.Thread:
    """Stop it as a cold shutdown does, in a thread that may hang."""

    def stop() -> None:
        with in_sighandler():
            pool.stop()  # type: ignore[attr-defined]

    stopping_ = threading.Thread(target=stop, daemon=True)
    stopping_.start()
    return stopping_


@pytest.fixture
def locked_out() -> Iterator[Callable[[AnyThreads], tuple[Any, threading.Lock, list[str]]]]:
    """A pool with a thread that wants a lock which the main thread holds, as that of the log."""
    held = threading.Lock()
    held.acquire()
    done: list[str] = []

    def want_the_lock() -> None:
        with held:
            done.append("step")

    def make(kind: AnyThreads) -> tuple[Any, threading.Lock, list[str]]:
        pool = kind(limit=1)
        pool.start()
        pool.apply_async(want_the_lock, (), {}, callback=lambda _: None)
        wait_until(lambda: len(pool.executor._threads) == 1)
        return pool, held, done

    yield make
    if held.locked():
        held.release()


Make = Callable[[AnyThreads], tuple[Any, threading.Lock, list[str]]]


def test_celery_waits_for_threads_in_a_signal_handler(locked_out: Make) -> None:
    pool, held, _ = locked_out(thread.TaskPool)
    handler = stop_in_a_handler(pool)
    handler.join(0.3)
    assert handler.is_alive()
    held.release()
    handler.join(5)


def test_a_cold_shutdown_waits_for_no_thread_until_its_signal_handler_is_over(
    locked_out: Make,
) -> None:
    pool, held, done = locked_out(pools.ThreadPool)
    handler = stop_in_a_handler(pool)
    handler.join(5)
    assert not handler.is_alive(), "the handler waits for a thread"
    assert done == []
    held.release()
    pool.terminate()
    assert done == ["step"], "the main thread did not wait for it either"


def test_a_cold_shutdown_may_come_while_the_main_thread_hands_a_task_to_the_pool() -> None:
    """It holds the executor's lock then, until the new thread has begun: a while on a busy machine.

    The handler runs in that very thread: to want the lock would be to wait for itself.
    """
    pool = pools.ThreadPool(limit=1)
    pool.start()
    with pool.executor._shutdown_lock:
        handler = stop_in_a_handler(pool)
        handler.join(5)
        assert not handler.is_alive(), "the handler wants the executor's lock"
    pool.terminate()
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.executor.submit(print)


def stopped_children(kind: AnyPrefork) -> tuple[Any, list[str]]:
    """A prefork pool that was stopped within a handler, and what became of its children."""
    forked: list[str] = []
    pool = kind(limit=1)
    pool._pool = SimpleNamespace(
        _state=RUN, close=lambda: forked.append("close"), join=lambda: forked.append("join")
    )
    stop_in_a_handler(pool).join(5)
    return pool, forked


def test_celery_waits_for_children_in_a_signal_handler() -> None:
    assert stopped_children(prefork.TaskPool)[1] == ["close", "join"]


def test_a_cold_shutdown_may_come_while_the_main_thread_writes_a_task_to_a_child() -> None:
    """The child waits for the rest of it, and in the handler the main thread for the child."""
    pool, forked = stopped_children(pools.PreforkPool)
    assert forked == []
    pool.terminate()
    assert forked == ["close", "join"]


# -- Celery: a message comes when the pool is gone -----------------------------------------------


def test_celery_counts_the_children_of_a_pool_that_is_gone() -> None:
    with pytest.raises(AttributeError):
        prefork.TaskPool(limit=1).num_processes  # noqa: B018


def test_a_pool_that_is_gone_has_no_places() -> None:
    assert pools.PreforkPool(limit=1).num_processes == 0


def give_too_late(kind: AnyThreads) -> None:
    pool = kind(limit=1)
    pool.start()
    pool.stop()
    pool.apply_async(print, (), {}, callback=print)


def test_celery_gives_a_task_to_threads_that_are_gone() -> None:
    stopping.this.asked = True
    with pytest.raises(RuntimeError):
        give_too_late(thread.TaskPool)


def test_a_task_for_threads_that_are_gone_is_not_begun() -> None:
    with pytest.raises(RuntimeError):
        give_too_late(pools.ThreadPool)  # nobody has asked it to go: a bug
    stopping.this.asked = True
    give_too_late(pools.ThreadPool)


# -- Celery: a task whose end cannot be told -----------------------------------------------------


class Told:
    """What the worker learns of a task that Celery fails around, with both result stores away."""

    def __init__(self, kind: AnyThreads, *, also: Exception | None = None) -> None:
        self.failed: list[str] = []
        self._also = also
        pool = kind(limit=1)
        pool.start()
        pool.apply_async(
            self._trace, (), {}, callback=self.failed.append, error_callback=self._fail
        )
        pool.stop()

    def _trace(self) -> None:
        raise redis.exceptions.OutOfMemoryError("not stored")

    def _fail(self, info: Any) -> None:
        self.failed.append(type(info.exception).__name__)
        if self._also is not None:
            raise self._also


def test_celery_never_learns_that_such_a_task_is_over() -> None:
    assert Told(thread.TaskPool).failed == []


def test_a_task_whose_result_cannot_be_stored_leaves_its_slot(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = Told(pools.ThreadPool, also=redis.ConnectionError("nor the failure"))
    assert len(told.failed) == 1
    assert "Celery failed around a task" in caplog.text
    assert "could not be told" in caplog.text


# -- billiard: a child waits for its reader ------------------------------------------------------


def seconds_until_a_child_leaves(monkeypatch: pytest.MonkeyPatch) -> float:
    slept: list[float] = []
    monkeypatch.setattr(billiard.pool.time, "sleep", slept.append)
    child = billiard.pool.Worker.__new__(billiard.pool.Worker)
    child.on_ready_counter = billiard.Value("i", 6)
    assert not child._ensure_messages_consumed(completed=7)
    return sum(slept)


def test_billiard_waits_longer_than_a_deploy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert seconds_until_a_child_leaves(monkeypatch) > 25


def test_a_child_leaves_soon_though_nobody_reads_its_last_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A warm shutdown forgets a task that it has not heard of again, and so never reads its end."""
    pools.leave_without_a_reader(monkeypatch.setattr)
    assert 1 < seconds_until_a_child_leaves(monkeypatch) < 5


# -- Celery: revoked stamps are kept for ever ----------------------------------------------------


def revoke_many_turns(monkeypatch: pytest.MonkeyPatch) -> int:
    """Revoke turns one after the other, and say how many are remembered."""
    stamps: dict[str, list[str]] = {}
    monkeypatch.setattr(worker_state, "revoked_stamps", stamps)
    monkeypatch.setattr(celery_control.worker_state, "revoked_stamps", stamps)
    state = SimpleNamespace(app=None, hostname="here", consumer=None)
    revoke = celery_control.Panel.data["revoke_by_stamped_headers"]
    for number in range(2 * control.MAX_STAMPS + 500):
        revoke(state, headers={"turn_id": [str(number)]})
    return len(stamps["turn_id"])


def test_celery_remembers_every_stamp(monkeypatch: pytest.MonkeyPatch) -> None:
    assert revoke_many_turns(monkeypatch) == 2 * control.MAX_STAMPS + 500


def test_revoked_turns_are_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    control.tell_of_revoked(monkeypatch.setattr, lambda _: None)
    assert revoke_many_turns(monkeypatch) <= 2 * control.MAX_STAMPS
