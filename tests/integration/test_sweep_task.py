"""The sweep as a task: what it finds in the rows is published, rung for and announced."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError, ProgrammingError

from models import claims, machine
from rejoinder.core.settings import Settings
from tasks import dispatch, stopping, sweeping
from tasks import runtime as runtimes
from tasks.runtime import Runtime
from tests.chats import World, said
from tests.integration.invariants import assert_invariants

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from tests.conftest import RedisSpace


class Swept:
    """What came of sweeps."""

    def __init__(self) -> None:
        self.rung: list[UUID] = []
        self.stored: list[UUID] = []
        self.looked = 0


@pytest.fixture
def runtime(
    database_url: str, redis_space: RedisSpace, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Runtime]:
    settings = Settings(
        database_url=database_url,
        redis_url=redis_space.url,
        redis_prefix=redis_space.prefix,
        dead_after_seconds=0.2,  # for so long after Postgres' start everybody is spared
    )
    made = Runtime(settings)
    claims.register_worker(made.engine, made.worker_id, "this process")
    monkeypatch.setattr(runtimes, "_current", made)
    monkeypatch.setattr(stopping, "this", stopping.Stopping())
    monkeypatch.setattr(sweeping, "waiting_steps", lambda: 0)
    yield made
    assert_invariants(made.engine)
    made.close()


@pytest.fixture
def world(runtime: Runtime) -> World:
    return World(runtime.engine)


@pytest.fixture
def swept(monkeypatch: pytest.MonkeyPatch) -> Swept:
    seen = Swept()
    monkeypatch.setattr(dispatch, "dispatch", lambda to: seen.rung.append(to.chat_id))
    monkeypatch.setattr(dispatch, "store_result", lambda _, end: seen.stored.append(end.turn_id))

    def look(_: Runtime) -> None:
        seen.looked += 1

    monkeypatch.setattr(sweeping, "look_for_answers", look)
    return seen


def sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "_last", -1e9)  # long ago
    sweeping.sweep_chats()


def kill(world: World) -> None:
    with world.engine.begin() as tx:
        query = "UPDATE rejoinder.workers SET seen_at = seen_at - interval '1 h' WHERE id = :w"
        tx.execute(text(query), {"w": world.worker_id})


def test_chats_of_a_dead_worker_go_on(
    world: World, swept: Swept, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence = world.claim(world.new().id)
    kill(world)
    sweep(monkeypatch)
    assert world.row(fence.chat_id)["status"] == "pending"
    assert swept.rung == [fence.chat_id]


def test_who_could_not_be_heard_itself_buries_nobody(
    runtime: Runtime, world: World, swept: Swept, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence = world.claim(world.new().id)
    kill(world)
    monkeypatch.setattr(type(runtime.heartbeat), "may_judge", property(lambda _: False))
    sweep(monkeypatch)
    assert (world.row(fence.chat_id)["status"], swept.rung) == ("running", [])


def test_a_step_whose_message_was_lost_is_rung_for_again(
    world: World, swept: Swept, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = world.new()
    with world.engine.begin() as tx:
        tx.execute(text("UPDATE rejoinder.chats SET redispatch_at = now() - interval '1 h'"))
    sweep(monkeypatch)
    assert swept.rung == [chat.id]


def test_a_turn_whose_end_nobody_announced_is_announced(
    world: World, swept: Swept, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = world.do(machine.finish_turn, world.claim(world.new().id), message=said("Done."))
    with world.engine.begin() as tx:
        tx.execute(text("UPDATE rejoinder.turns SET ended_at = now() - interval '1 h'"))
    sweep(monkeypatch)
    assert swept.stored == [end.turn_id for end in done.ended]
    sweep(monkeypatch)
    assert len(swept.stored) == 1


@pytest.mark.usefixtures("runtime")
def test_sweeps_that_have_piled_up_are_one(swept: Swept, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep(monkeypatch)
    sweeping.sweep_chats()
    assert swept.looked == 1


@pytest.mark.usefixtures("runtime")
def test_a_database_that_is_away_is_left_to_the_next_sweep(
    swept: Swept, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_args: object, **_options: object) -> None:
        raise OperationalError("SELECT", {}, ConnectionError("gone"), connection_invalidated=True)

    def broken(*_args: object, **_options: object) -> None:
        raise ProgrammingError("SELECT", {}, ValueError("no such column"))

    monkeypatch.setattr(sweeping, "sweep", away)
    sweep(monkeypatch)
    assert swept.looked == 0
    monkeypatch.setattr(sweeping, "sweep", broken)
    with pytest.raises(ProgrammingError):
        sweep(monkeypatch)
