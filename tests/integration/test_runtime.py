"""The heartbeat of a process cancels what was taken away, and hands back what nobody works on."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from uuid import UUID

import pytest
from sqlalchemy import text

from models import claims, machine
from rejoinder.core.effects import Cause, Effects
from rejoinder.core.limits import SWEEP_OVERDUE
from rejoinder.core.parts import Text
from rejoinder.core.settings import Settings
from tasks import dispatch, stopping
from tasks.runtime import Runtime
from tests.chats import DEAD_AFTER, World
from tests.conftest import RedisSpace
from tests.waiting import wait_until


@pytest.fixture
def runtime(database_url: str, redis_space: RedisSpace) -> Iterator[Runtime]:
    made = Runtime(Settings(database_url=database_url, redis_url=redis_space.url))
    claims.register_worker(made.engine, made.worker_id, "this process")
    yield made
    made.engine.dispose()
    made.redis.close()


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> list[Effects]:
    seen: list[Effects] = []
    monkeypatch.setattr(dispatch, "publish", lambda _runtime, effects: seen.append(effects))
    monkeypatch.setattr(stopping.Stopping, "errand", lambda _, act: act())
    return seen


def test_a_claim_whose_answer_was_lost_is_handed_back(
    runtime: Runtime, published: list[Effects]
) -> None:
    world = World(runtime.engine)
    chat = world.new()
    claims.claim(runtime.engine, chat.id, runtime.worker_id, dead_after=DEAD_AFTER)
    runtime.heartbeat.beat_once()
    assert world.row(chat.id)["status"] == "running", "its answer may be on the way"
    runtime.heartbeat.beat_once()
    row = world.row(chat.id)
    assert (row["status"], row["crashes"]) == ("pending", 0)
    assert [effects.dispatch is not None for effects in published] == [True]


def test_one_that_was_taken_for_dead_is_back_with_the_next_beat(
    runtime: Runtime, published: list[Effects]
) -> None:
    world = World(runtime.engine)
    chat = world.new()
    with runtime.engine.begin() as tx:
        tx.execute(text("DELETE FROM rejoinder.workers"))
    runtime.heartbeat.beat_once()
    world.claim(chat.id, runtime.worker_id)  # or it could not be claimed
    assert published == []


def test_a_step_at_work_keeps_its_lease(runtime: Runtime, published: list[Effects]) -> None:
    world = World(runtime.engine)
    chat = world.new()
    fence = world.claim(chat.id, runtime.worker_id)
    with runtime.running(chat.id, fence.lease_id) as step:
        for _ in range(3):
            runtime.heartbeat.beat_once()
        assert step.cancellation.cause is None
    assert world.row(chat.id)["status"] == "running"
    assert published == []


@pytest.mark.parametrize(
    ("take", "cause"),
    [("interrupt", Cause.INTERRUPT), ("edit", Cause.LEASE_LOST), ("recover", Cause.LEASE_LOST)],
)
def test_a_step_whose_chat_was_stopped_or_taken_is_cancelled_with_the_cause(
    runtime: Runtime, take: str, cause: Cause
) -> None:
    world = World(runtime.engine)
    chat = world.new()
    fence = world.claim(chat.id, runtime.worker_id)
    with runtime.running(chat.id, fence.lease_id) as step:
        _take(world, take, chat.id, fence.lease_id)
        runtime.heartbeat.beat_once()
        assert step.cancellation.cause is cause


def _take(world: World, how: str, chat_id: UUID, lease_id: UUID) -> None:
    match how:
        case "interrupt":
            world.do(machine.interrupt, chat_id)
        case "edit":
            (row,) = world.read("SELECT id FROM rejoinder.messages WHERE chat_id = :c", c=chat_id)
            world.do(machine.edit, chat_id, row["id"], [Text("other")])
        case _:
            world.do(machine.recover, chat_id, lease_id)


@pytest.mark.usefixtures("published")
def test_a_heartbeat_sweeps_when_nobody_has_for_long_and_says_so_once(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    runtime.dead_after = timedelta(seconds=1)  # nobody is dead until Postgres has run for so long
    world = World(runtime.engine)
    dead, chat = world.worker("dead"), world.new()
    assert claims.begin_sweep(runtime.engine)
    world.claim(chat.id, dead)
    _age(world, "workers SET seen_at = seen_at - interval '1 hour' WHERE name = 'dead'")
    runtime.heartbeat.beat_once()
    assert world.row(chat.id)["status"] == "running", "somebody has swept a moment ago"
    for _ in range(2):
        _age(world, "sweeps SET swept_at = swept_at - interval '16 seconds'")
        runtime.heartbeat.beat_once()
    wait_until(lambda: world.row(chat.id)["status"] == "pending")
    assert world.row(chat.id)["crashes"] == 1
    assert caplog.text.count("is beat running?") == 1


def test_one_of_many_takes_the_sweep_that_nobody_does(runtime: Runtime) -> None:
    world = World(runtime.engine)
    _age(world, "sweeps SET swept_at = swept_at - interval '16 seconds'")
    with ThreadPoolExecutor(8) as pool:
        took = pool.map(
            lambda _: claims.begin_sweep(runtime.engine, older_than=SWEEP_OVERDUE), range(8)
        )
    assert sum(took) == 1


def _age(world: World, what: str) -> None:
    world.transact(lambda tx: tx.execute(text(f"UPDATE rejoinder.{what}")))
