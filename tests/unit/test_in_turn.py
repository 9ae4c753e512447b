"""A thread of a pool that takes what its task has left to it."""

import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tasks import edges as edges  # it has the pool's threads serve one after the other
from tasks import in_turn
from tasks.celery_patches.pools import ThreadPool as TaskPool


@pytest.fixture
def pool() -> Iterator[TaskPool]:
    made = TaskPool(limit=2)
    made.start()
    yield made
    made.stop()


class Work:
    """Tasks that leave others, as a step does for the next step of its turn."""

    def __init__(self, pool: TaskPool) -> None:
        self.pool = pool
        self.done: list[tuple[str, int]] = []
        self.queued: list[str] = []
        self.over = threading.Event()

    def give(self, name: str, then: Callable[[], None] = lambda: None) -> None:
        """Give the pool a task, as Celery's main loop does."""
        self.pool.apply_async(self._run, (name, then), callback=self._ended, accept_callback=None)

    def leave(self, name: str, then: Callable[[], None] = lambda: None) -> None:
        """Leave a task to the thread that runs this one."""
        assert in_turn.leave(partial(self.give, name, then))

    def _run(self, name: str, then: Callable[[], None]) -> str:
        then()
        self.done.append((name, threading.get_ident()))
        return name

    def _ended(self, name: str) -> None:
        self.queued.append(name)
        if name in ("last", "fails"):
            self.over.set()
        if name == "fails":
            raise RuntimeError("Celery's own")


def test_what_a_task_leaves_is_done_by_its_thread_after_it_has_ended(pool: TaskPool) -> None:
    work = Work(pool)
    work.give("first", lambda: work.leave("second", lambda: work.leave("last")))
    assert work.over.wait(5)
    names, threads = zip(*work.done, strict=True)
    assert names == ("first", "second", "last")
    assert len({*threads}) == 1
    assert work.queued == ["first", "second", "last"]  # each had ended before the next began


def test_what_is_left_is_done_though_celery_fails_around_the_task(
    pool: TaskPool, caplog: pytest.LogCaptureFixture
) -> None:
    work = Work(pool)
    work.give("fails", lambda: work.leave("last"))
    pool.stop()
    assert [name for name, _ in work.done] == ["fails", "last"]
    assert "Celery failed around a task" in caplog.text


def test_what_celery_does_not_give_to_the_pool_is_not_done(pool: TaskPool) -> None:
    """A step that was revoked meanwhile, or one that the broker gets after all."""
    received: list[str] = []
    work = Work(pool)

    def revoked() -> None:
        received.append("it")

    work.give("last", lambda: _leave(revoked))
    pool.stop()
    assert received == ["it"]
    assert [name for name, _ in work.done] == ["last"]


def _leave(receive: Callable[[], None]) -> None:
    assert in_turn.leave(receive)


def test_others_are_not_kept_from_the_pool(pool: TaskPool) -> None:
    work, both = Work(pool), threading.Barrier(2, timeout=5)
    work.give("first", both.wait)  # type: ignore[arg-type]  # what it returns is not looked at
    work.give("last", both.wait)  # type: ignore[arg-type]
    pool.stop()
    assert len({thread for _, thread in work.done}) == 2


def test_a_thread_takes_one_thing_after_another(pool: TaskPool) -> None:
    taken: list[bool] = []
    work = Work(pool)
    nothing: Callable[[], None] = lambda: None  # noqa: E731
    work.give("last", lambda: taken.extend(in_turn.leave(nothing) for _ in range(2)))
    pool.stop()
    assert taken == [True, False]  # the second one has to go elsewhere


def test_a_thread_of_nobodys_pool_takes_nothing() -> None:
    assert not in_turn.leave(lambda: None)
