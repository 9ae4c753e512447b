"""Steps that a worker takes itself: who takes them, and when they fall back to the broker."""

import os
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from celery.app.task import Context

from models.claims import Claim
from rejoinder.core.effects import Dispatch, Fence
from rejoinder.core.settings import Settings
from tasks import app, local_dispatch, stopping
from tasks.celery_patches.pools import PreforkPool, ThreadPool
from tasks.local_dispatch import (
    IN_A_ROW,
    MOST_IN_A_ROW,
    STEP,
    Local,
    Offer,
    Pipe,
    ServingPool,
    deliver,
    offer,
    receive,
    take_claim,
)

Given = tuple[Dispatch, Claim | None]


class Consumer(SimpleNamespace):
    """As much of Celery's as is asked; what it takes it gives to its pool, if it has one."""

    def __init__(self, places: int = 4, *, takes: bool = True) -> None:
        self.taken: list[Any] = []
        self.serving: ServingPool | None = None
        self.run: Callable[[UUID], object] = take_claim
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
        if self.serving is not None:
            step_id = UUID(message.headers["id"])
            self.serving.apply_async(self.run, (step_id,), callback=lambda _: None)


class Stage:
    """A worker that takes its own steps."""

    def __init__(self, pipe: Pipe | None) -> None:
        self.fell_back: list[Given] = []
        self.local = Local(lambda to, claim: self.fell_back.append((to, claim)), pipe)
        self.consumer = self.local.consumer = Consumer()

    @property
    def taken(self) -> list[str]:
        return [message.headers["id"] for message, _ in self.consumer.taken]


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "this", stopping.Stopping())
    monkeypatch.setattr(stopping.Stopping, "errand", lambda _, act: act())


@pytest.fixture
def forking(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """Of a prefork pool: this is the child and the main process in one."""
    stage = Stage(pipe := Pipe())
    monkeypatch.setattr(local_dispatch, "this", stage.local)
    yield stage
    for end in (pipe._reading, pipe._writing):
        os.close(end)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """Of a threads pool."""
    stage = Stage(None)
    monkeypatch.setattr(local_dispatch, "this", stage.local)
    stage.consumer.serving = ServingPool(limit=2)
    stage.consumer.serving.start()
    yield stage
    stage.consumer.serving.stop()


def request(**headers: Any) -> Context:
    own = str(uuid4())
    return Context({"id": own, "root_id": own, **headers})


def a_step(delay: float = 0.0) -> Dispatch:
    return Dispatch(uuid4(), uuid4(), uuid4(), delay)


def a_claim(to: Dispatch) -> Claim:
    return Claim(Fence(to.chat_id, uuid4(), 1), to.turn_id, 0, 1, 0, to.step_id, kept=True)


def run_in(stage: Stage, task: Callable[[], object]) -> None:
    """Have a thread of the pool run a task, and all that follows from it."""
    pool = stage.consumer.serving
    assert pool is not None
    pool.apply_async(task, (), callback=lambda _: None)
    pool.stop()


@pytest.mark.parametrize(
    ("pool", "fast", "made", "runs"),
    [
        (ThreadPool, True, True, ServingPool),
        (PreforkPool, True, True, PreforkPool),
        ("solo", True, False, "solo"),
        (ThreadPool, False, False, ThreadPool),
        (PreforkPool, False, False, PreforkPool),
    ],
)
def test_one_switch_leaves_everything_to_the_broker(
    monkeypatch: pytest.MonkeyPatch, pool: object, *, fast: bool, made: bool, runs: object
) -> None:
    monkeypatch.setattr(local_dispatch, "this", None)
    monkeypatch.setattr(app.amqp.queues, "_consume_from", {"rejoinder.steps": None})
    worker = SimpleNamespace(pool_cls=pool, should_use_eventloop=lambda: True)
    local_dispatch.start(worker, lambda *_: None, Settings(fast=fast))
    assert (local_dispatch.this is not None, worker.pool_cls) == (made, runs)
    assert not offer(a_step(), None, request()) or made


# -- threads --------------------------------------------------------------------------------------


def test_the_thread_takes_what_its_step_offers_after_it_has_ended(threads: Stage) -> None:
    to, ran = [a_step(), a_step()], []

    def first() -> None:
        assert offer(to[0], None, request())
        ran.append(("first", threading.get_ident(), [*threads.taken]))

    def then(step_id: UUID) -> None:
        if step_id == to[0].step_id:
            assert offer(to[1], None, request())
        ran.append((str(step_id), threading.get_ident(), [*threads.taken]))

    threads.consumer.run = then
    run_in(threads, first)
    ids = [str(each.step_id) for each in to]
    assert [name for name, _, _ in ran] == ["first", *ids]
    assert len({thread for _, thread, _ in ran}) == 1
    assert [taken for _, _, taken in ran] == [[], ids[:1], ids]
    assert threads.fell_back == []


def test_a_claim_goes_with_its_step(threads: Stage) -> None:
    to, taken = a_step(), []
    claim = a_claim(to)
    threads.consumer.run = lambda step_id: taken.extend([take_claim(step_id), take_claim(step_id)])
    run_in(threads, lambda: offer(to, claim, request()))
    assert taken == [claim, None]
    assert threads.fell_back == []


def test_a_claim_is_for_no_other_step(threads: Stage) -> None:
    to, taken = a_step(), []
    claim = a_claim(to)
    threads.consumer.run = lambda _: taken.append(take_claim(uuid4()))
    run_in(threads, lambda: offer(to, claim, request()))
    assert (taken, threads.fell_back) == ([None], [(to, claim)])


def _fails(_: object) -> None:
    raise MemoryError("before it took its claim")


@pytest.mark.parametrize("why", ["revoked", "full", "going", "no consumer", "broken", "fails"])
def test_a_claim_that_its_step_did_not_take_is_handed_back(threads: Stage, why: str) -> None:
    to = a_step()
    claim, consumer = a_claim(to), threads.consumer

    def step() -> None:
        assert offer(to, claim, request())
        match why:
            case "revoked":  # Celery discards it
                consumer.strategies = {STEP: lambda *_: None}
            case "full":
                consumer.pool.num_processes = 0
            case "going":
                stopping.this.asked = True
            case "no consumer":
                threads.local.consumer = None
            case "broken":
                consumer.strategies = {}
            case _:
                consumer.run = _fails

    run_in(threads, step)
    assert threads.fell_back == [(to, claim)]


def test_what_falls_back_without_success_ends_no_thread(
    threads: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_to: Dispatch, _claim: Claim | None) -> None:
        raise ConnectionError("database and broker are away")

    threads.local._fall_back = broken
    threads.consumer.pool.num_processes = 1
    ran: list[str] = []

    def step() -> None:
        assert offer(a_step(), None, request())
        threads.consumer.pool.num_processes = 0
        ran.append("it")

    run_in(threads, step)
    assert ran == ["it"]
    assert "could not be handed on" in caplog.text


def test_a_full_worker_takes_none_and_a_thread_takes_one(threads: Stage) -> None:
    taken: list[bool] = []

    def step() -> None:
        taken.extend(offer(a_step(), None, request()) for _ in range(2))
        threads.consumer.pool.num_processes = 0
        taken.append(local_dispatch.can_take(request()))

    run_in(threads, step)
    assert taken == [True, False, False]


def test_a_thread_of_nobodys_pool_takes_nothing(threads: Stage) -> None:
    del threads
    assert not local_dispatch.can_take(request())
    assert not offer(a_step(), None, request())


def test_others_are_not_kept_from_the_pool(threads: Stage) -> None:
    both = threading.Barrier(2, timeout=5)
    pool = threads.consumer.serving
    assert pool is not None
    seen: list[int] = []

    def meet() -> None:
        both.wait()
        seen.append(threading.get_ident())

    for _ in range(2):
        pool.apply_async(meet, (), callback=lambda _: None)
    pool.stop()
    assert len({*seen}) == 2


# -- prefork --------------------------------------------------------------------------------------


def test_offers_come_out_of_the_pipe_as_they_went_in(forking: Stage) -> None:
    pipe = forking.local.pipe
    assert pipe is not None
    offers = [Offer(a_step(), "order-4711", "ø" * 300, number) for number in range(20)]
    assert all(pipe.write(each) for each in offers)
    assert [*pipe.read()] == offers
    assert [*pipe.read()] == []


def test_an_offer_too_long_for_a_pipe_falls_back() -> None:
    pipe = Pipe()
    assert not pipe.write(Offer(a_step(), "x" * 5000, "y", 1))
    assert [*pipe.read()] == []


def test_a_full_pipe_and_a_main_process_that_is_gone_are_told() -> None:
    pipe, made = Pipe(), Offer(a_step(), "a", "b", 1)
    while pipe.write(made):
        pass
    assert {*pipe.read()} == {made}
    pipe.only_write()
    assert not pipe.write(made)
    os.close(pipe._writing)


@pytest.mark.parametrize(("own", "root"), [("order-4711", None), ("x" * 300, "y")])
def test_a_step_is_delivered_with_whatever_ids_others_chose(
    forking: Stage, own: str, root: str | None
) -> None:
    to = a_step()
    assert offer(to, None, Context({"id": own, "root_id": root}))
    _listen(forking)
    ((message, _),) = forking.consumer.taken
    assert message.payload[1] == {"chat_id": str(to.chat_id)}
    headers = message.headers
    assert (headers["id"], headers["stamps"]) == (str(to.step_id), {"turn_id": str(to.turn_id)})
    assert (headers["parent_id"], headers["root_id"], headers[IN_A_ROW]) == (own, root or own, 1)
    assert forking.fell_back == []


@pytest.mark.parametrize(
    "consumer",
    [Consumer(places=0), Consumer(takes=False), SimpleNamespace(task_consumer=None), None],
    ids=["full", "other queues", "shut down", "away"],
)
def test_a_worker_that_would_take_none_from_the_broker_takes_none_from_itself(
    forking: Stage, consumer: Any
) -> None:
    to = a_step()
    assert offer(to, None, request())
    forking.local.consumer = consumer
    _listen(forking)
    assert (forking.taken, forking.fell_back) == ([], [(to, None)])


def test_what_was_offered_before_the_worker_was_to_go_falls_back(forking: Stage) -> None:
    to = a_step()
    assert offer(to, None, request())
    stopping.this.asked = True
    _listen(forking)
    assert (forking.taken, forking.fell_back) == ([], [(to, None)])


def test_a_message_that_celery_gives_back_falls_back(forking: Stage) -> None:
    to = a_step()
    deliver(forking.consumer, Offer(to, "a", "b", 1))
    ((_, reject),) = forking.consumer.taken
    reject(None, (), requeue=False)
    assert forking.fell_back == []
    reject(None, (), requeue=True)
    assert forking.fell_back == [(to, None)]


def test_a_step_that_cannot_be_delivered_falls_back(forking: Stage) -> None:
    to = a_step()
    forking.consumer.strategies = {}
    assert offer(to, None, request())
    _listen(forking)
    assert forking.fell_back == [(to, None)]


# -- both -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", ["nine", None, 3.5])
def test_the_tenth_in_a_row_goes_through_the_broker(forking: Stage, header: object) -> None:
    del forking
    assert offer(a_step(), None, request(**{IN_A_ROW: MOST_IN_A_ROW - 1}))
    assert not offer(a_step(), None, request(**{IN_A_ROW: MOST_IN_A_ROW}))
    assert offer(a_step(), None, request(**{IN_A_ROW: header})), "a stranger's header"


def test_nothing_is_offered_too_early_or_when_the_worker_goes(forking: Stage) -> None:
    assert not offer(a_step(delay=1.0), None, request())
    stopping.this.asked = True
    assert not offer(a_step(), None, request())
    _listen(forking)
    assert forking.fell_back == []


def _listen(stage: Stage) -> None:
    assert stage.local.pipe is not None
    receive(stage.local, stage.local.pipe)
