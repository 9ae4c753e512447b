"""A worker's own doorbell: what goes through the pipe, and when the broker has to have it."""

import os
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from celery.app.task import Context

from rejoinder.core.effects import Dispatch
from tasks import bell, dispatch, in_turn, stopping
from tasks.bell import IN_A_ROW, MOST_IN_A_ROW, STEP, Bell, Ring


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bell]:
    here = Bell()
    monkeypatch.setattr(bell, "this", here)
    monkeypatch.setattr(stopping, "this", stopping.Stopping())
    yield here
    for end in (here._reading, here._writing):
        os.close(end)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> list[Dispatch]:
    """What is given to the broker."""
    sent: list[Dispatch] = []
    monkeypatch.setattr(dispatch, "dispatch", sent.append)
    monkeypatch.setattr(stopping.Stopping, "errand", lambda _, act: act())
    return sent


def request(**headers: Any) -> Context:
    own = str(uuid4())
    return Context({"id": own, "root_id": own, **headers})


def a_step(delay: float = 0.0) -> Dispatch:
    return Dispatch(uuid4(), uuid4(), uuid4(), delay)


class Worker(SimpleNamespace):
    """As much of Celery's consumer as is asked."""

    def __init__(self, places: int = 4, *, takes: bool = True) -> None:
        self.taken: list[Any] = []
        super().__init__(
            hostname="steps@here",
            controller=SimpleNamespace(max_concurrency=None),
            pool=SimpleNamespace(num_processes=places),
            task_consumer=SimpleNamespace(consuming_from=lambda _: takes),
            strategies={STEP: self.take},
            on_task_message=(),
        )

    def take(self, message: Any, _body: object, _ack: object, reject: Any, _: object) -> None:
        self.taken.append((message, reject))


def test_what_is_rung_for_comes_out_as_it_went_in(made: Bell) -> None:
    rings = [Ring(a_step(), uuid4(), uuid4(), number) for number in range(5)]
    assert all(made.ring(each) for each in rings)
    assert [*made.rung()] == rings
    assert [*made.rung()] == []


def test_a_full_pipe_and_a_main_process_that_is_gone_are_told() -> None:
    here = Bell()
    ring = Ring(a_step(), uuid4(), uuid4(), 1)
    while here.ring(ring):
        pass
    assert {*here.rung()} == {ring}
    here.only_ring()
    assert not here.ring(ring)
    os.close(here._writing)


def test_the_step_is_taken_with_its_ids(elsewhere: list[Dispatch]) -> None:
    to, asks = a_step(), request(root_id="not-ours")
    assert bell.ring(to, asks)
    worker = Worker()
    bell.listen(worker)
    ((message, _),) = worker.taken
    assert message.payload[1] == {"chat_id": str(to.chat_id)}
    told = message.headers
    assert (told["id"], told["stamps"]) == (str(to.step_id), {"turn_id": str(to.turn_id)})
    assert (told["parent_id"], told["root_id"], told[IN_A_ROW]) == (asks.id, asks.id, 1)
    assert elsewhere == []


def test_the_tenth_in_a_row_goes_through_the_broker() -> None:
    assert bell.ring(a_step(), request(**{IN_A_ROW: MOST_IN_A_ROW - 1}))
    assert not bell.ring(a_step(), request(**{IN_A_ROW: MOST_IN_A_ROW}))


def test_nobody_is_rung_for_here_too_early_or_when_the_worker_goes(made: Bell) -> None:
    assert not bell.ring(a_step(delay=1.0), request())
    stopping.this.asked = True
    assert not bell.ring(a_step(), request())
    assert [*made.rung()] == []


def test_a_worker_without_a_bell_rings_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bell, "this", None)
    assert not bell.ring(a_step(), request())


@pytest.mark.parametrize("worker", [Worker(places=0), Worker(takes=False)], ids=["full", "closed"])
def test_a_worker_that_would_take_none_from_the_broker_takes_none_from_itself(
    elsewhere: list[Dispatch], worker: Worker
) -> None:
    to = a_step()
    assert bell.ring(to, request())
    bell.listen(worker)
    assert (worker.taken, elsewhere) == ([], [to])


def test_what_was_rung_before_the_worker_was_to_go_is_handed_on(elsewhere: list[Dispatch]) -> None:
    to, worker = a_step(), Worker()
    assert bell.ring(to, request())
    stopping.this.asked = True
    bell.listen(worker)
    assert (worker.taken, elsewhere) == ([], [to])


def test_a_message_that_celery_gives_back_is_handed_on(elsewhere: list[Dispatch]) -> None:
    to, worker = a_step(), Worker()
    bell.ring(to, request())
    bell.listen(worker)
    ((_, reject),) = worker.taken
    reject(None, (), requeue=False)
    assert elsewhere == []
    reject(None, (), requeue=True)
    assert elsewhere == [to]


def test_a_step_that_cannot_be_taken_is_handed_on(elsewhere: list[Dispatch]) -> None:
    to, worker = a_step(), Worker()
    worker.strategies = {}
    bell.ring(to, request())
    bell.listen(worker)
    assert elsewhere == [to]


def in_a_thread_of_the_pool(act: Callable[[], None]) -> None:
    thread = threading.Thread(target=in_turn.serve, args=(act,))
    thread.start()
    thread.join(10)


def test_a_thread_of_the_pool_takes_what_it_rings_for_itself(
    made: Bell, elsewhere: list[Dispatch]
) -> None:
    to, worker, before = a_step(), Worker(), []
    made.consumer = worker

    def step() -> None:
        assert bell.ring(to, request())
        before.append(len(worker.taken))

    in_a_thread_of_the_pool(step)
    ((message, _),) = worker.taken
    assert before == [0]  # when it is done, not before
    assert (message.headers["id"], message.payload[1]["chat_id"]) == (
        str(to.step_id),
        str(to.chat_id),
    )
    assert ([*made.rung()], elsewhere) == ([], [])


def test_a_thread_of_a_full_pool_leaves_it_to_the_main_loop(made: Bell) -> None:
    to, made.consumer = a_step(), Worker(places=0)
    in_a_thread_of_the_pool(lambda: _rings(to))
    assert [ring.to for ring in made.rung()] == [to]


def test_what_a_thread_has_rung_for_when_the_worker_goes_is_handed_on_before_it_ends(
    made: Bell, elsewhere: list[Dispatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping.Stopping, "errand", lambda *_: pytest.fail("nobody waits for it"))
    to, worker = a_step(), Worker()
    made.consumer = worker

    def step() -> None:
        _rings(to)
        stopping.this.asked = True

    in_a_thread_of_the_pool(step)
    assert (worker.taken, elsewhere) == ([], [to])


def _rings(to: Dispatch) -> None:
    assert bell.ring(to, request())
