"""Chats that took workers down: one at a time in a process, and none of them stands still."""

from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text

from models import claims, machine
from rejoinder.core.effects import Dispatch
from rejoinder.core.limits import SUSPECT_AT
from rejoinder.core.settings import Settings
from tasks import claiming, stopping
from tasks.runtime import Runtime
from tests.chats import Subject, World, said
from tests.conftest import RedisSpace
from tests.waiting import wait_until


@pytest.fixture
def runtime(
    database_url: str, redis_space: RedisSpace, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Runtime]:
    made = Runtime(Settings(database_url=database_url, redis_url=redis_space.url))
    claims.register_worker(made.engine, made.worker_id, "this process")
    monkeypatch.setattr(stopping, "this", stopping.Stopping())
    yield made
    made.close()


@pytest.fixture
def world(runtime: Runtime) -> World:
    return World(runtime.engine)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[UUID]:
    """Chats that the broker is told of."""
    given: list[UUID] = []

    def dispatch(to: Dispatch) -> None:
        given.append(to.chat_id)

    monkeypatch.setattr(claiming, "dispatch", dispatch)
    return given


def suspect(world: World) -> Subject:
    subject = world.new()
    for _ in range(SUSPECT_AT):
        world.do(machine.recover, subject.id, world.claim(subject.id).lease_id)
    return subject


def claim(runtime: Runtime, subject: Subject) -> bool:
    with claiming.claiming(runtime, subject.id, uuid4(), uuid4()) as got:
        return got is not None


def test_one_that_was_left_is_dispatched_though_the_first_still_runs(
    runtime: Runtime, world: World, sent: list[UUID]
) -> None:
    first, second = suspect(world), suspect(world)
    with claiming.claiming(runtime, first.id, uuid4(), uuid4()) as got:
        assert got is not None
        for _ in range(3):
            assert not claim(runtime, second)
        wait_until(lambda: sent == [second.id], 5)
        assert not claim(runtime, second)
        wait_until(lambda: sent == [second.id] * 2, 5)


def test_one_that_was_left_is_dispatched_when_the_first_is_done(
    runtime: Runtime, world: World, sent: list[UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claiming, "LEFT_SECONDS", 3600.0)
    first, second = suspect(world), suspect(world)
    with claiming.claiming(runtime, first.id, uuid4(), uuid4()):
        assert not claim(runtime, second)
        assert sent == []
    assert sent == [second.id]


def test_a_process_that_shuts_down_hands_on_what_it_left(
    runtime: Runtime, world: World, sent: list[UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claiming, "LEFT_SECONDS", 3600.0)
    first, second = suspect(world), suspect(world)
    with claiming.claiming(runtime, first.id, uuid4(), uuid4()):
        assert not claim(runtime, second)
        stopping.this.start()
        runtime._drain()
        wait_until(lambda: sent == [second.id])


def test_the_gaps_of_a_suspect_do_not_grow(world: World) -> None:
    subject = suspect(world)
    gap = text("SELECT redispatch_at - now() <= interval '10 s' FROM rejoinder.chats")
    overdue = text("UPDATE rejoinder.chats SET redispatch_at = now()")
    for _ in range(4):
        world.transact(lambda tx: tx.execute(overdue))
        (to,) = world.transact(claims.redispatch)
        assert to.chat_id == subject.id
        assert world.transact(lambda tx: tx.execute(gap).scalar_one())


def test_one_good_step_clears_a_chat(runtime: Runtime, world: World) -> None:
    subject = suspect(world)
    world.do(machine.commit, world.claim(subject.id), message=said("Hm."))
    assert world.row(subject.id)["crashes"] == 0
    with runtime.suspects:
        assert claim(runtime, subject), "as any other"


def test_a_message_for_a_chat_that_is_no_suspect_is_not_repeated(
    runtime: Runtime, world: World
) -> None:
    busy = world.new()
    world.claim(busy.id)
    with claiming.claiming(runtime, suspect(world).id, uuid4(), uuid4()) as got:
        assert got is not None
        assert not claim(runtime, busy)
        assert busy.id not in runtime.left
