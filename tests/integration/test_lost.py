"""Chats whose step was revoked, or is gone with its process: what is done from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from uuid_utils.compat import uuid7

from models import claims, machine
from rejoinder.core.settings import Settings
from tasks import lost, stopping
from tasks.runtime import Runtime
from tests.chats import DEAD_AFTER, World, words
from tests.integration.invariants import assert_invariants

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rejoinder.core.effects import Effects
    from tests.conftest import RedisSpace


@pytest.fixture
def runtime(
    database_url: str, redis_space: RedisSpace, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Runtime]:
    settings = Settings(
        database_url=database_url, redis_url=redis_space.url, redis_prefix=redis_space.prefix
    )
    made = Runtime(settings)
    claims.register_worker(made.engine, made.worker_id, "this process")
    monkeypatch.setattr(stopping, "this", stopping.Stopping())
    monkeypatch.setattr(stopping.this, "errand", lambda act: act())
    monkeypatch.setattr(lost, "current", lambda: made)
    yield made
    assert_invariants(made.engine)
    made.close()


@pytest.fixture
def world(runtime: Runtime) -> World:
    return World(runtime.engine)


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> list[Effects]:
    seen: list[Effects] = []
    monkeypatch.setattr(lost, "publish", lambda _, effects: seen.append(effects))
    return seen


def at_work(world: World) -> tuple[UUID, UUID]:
    """A chat that a worker of another process is on, and its step."""
    chat = world.new()
    step_id = uuid7()
    claim = claims.claim(
        world.engine, chat.id, world.worker_id, dead_after=DEAD_AFTER, step_id=step_id
    )
    assert claim is not None
    return chat.id, step_id


def write(runtime: Runtime, world: World, chat_id: UUID, text: str) -> None:
    """What its worker has told readers of an answer."""
    version = world.row(chat_id)["history_version"]
    part = {"of": "text", "index": 0, "text": text, "history_version": version, "attempt": 0}
    runtime.events.add(chat_id, "part", {**part, "seq": 1, "n": 1}, now=False)
    runtime.events.flush()


@pytest.mark.parametrize("named_by", ["step", "turn"])
def test_a_revoked_turn_is_stopped(world: World, published: list[Effects], named_by: str) -> None:
    chat_id, step_id = at_work(world)
    lost.stop_revoked([step_id if named_by == "step" else world.row(chat_id)["turn_id"]])
    assert world.row(chat_id)["status"] == "interrupting"
    assert [hint.worker_id for each in published for hint in each.hints] == [world.worker_id]


def test_what_is_no_id_of_ours_stops_nobody(world: World, published: list[Effects]) -> None:
    chat_id, _ = at_work(world)
    lost.stop_revoked(["not an id", str(uuid7()), None])
    assert (world.row(chat_id)["status"], published) == ("running", [])


def test_a_revoked_turn_that_waits_leaves_the_queue_and_the_one_at_work_alone(
    world: World, published: list[Effects]
) -> None:
    chat_id, _ = at_work(world)
    queued = world.do(machine.send, chat_id, words("Later."))
    (turn,) = world.read("SELECT turn_id FROM rejoinder.queued_messages")
    assert queued.queued_id is not None
    lost.stop_revoked([turn["turn_id"]])
    row = world.row(chat_id)
    assert (row["status"], row["queue_length"]) == ("running", 0)
    assert len(published) == 1


def test_a_chat_whose_process_is_gone_goes_on_elsewhere(
    runtime: Runtime, world: World, published: list[Effects]
) -> None:
    chat_id, step_id = at_work(world)
    write(runtime, world, chat_id, "Half a sen")
    lost.recover_step(str(step_id))
    row = world.row(chat_id)
    assert (row["status"], row["crashes"]) == ("pending", 1)
    assert [each.dispatch is not None for each in published] == [True]


def test_of_a_stopped_chat_whose_process_is_gone_the_words_are_kept(
    runtime: Runtime, world: World, published: list[Effects]
) -> None:
    chat_id, step_id = at_work(world)
    write(runtime, world, chat_id, "Half a sen")
    world.do(machine.interrupt, chat_id)
    lost.recover_step(str(step_id))
    assert world.row(chat_id)["status"] == "waiting"
    (row,) = world.read("SELECT parts FROM rejoinder.messages WHERE role = 'assistant'")
    assert row["parts"][0]["text"] == "Half a sen"
    assert len(published) == 1


def test_a_step_that_has_ended_is_not_recovered(world: World, published: list[Effects]) -> None:
    chat_id, _ = at_work(world)
    lost.recover_step(str(uuid7()))
    lost.recover_step("not an id")
    assert (world.row(chat_id)["status"], published) == ("running", [])
