"""What follows from a message, told and rung for: in this order, whatever Redis does."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import redis

from models import claims, machine
from rejoinder.batches import Batches
from rejoinder.core.settings import Settings
from rejoinder.core.state import Status
from rejoinder.streams import key_of
from tasks import dispatch
from tasks.runtime import Runtime
from tests.chats import World, words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rejoinder.batches import Command
    from tests.conftest import RedisSpace


@pytest.fixture
def runtime(database_url: str, redis_space: RedisSpace) -> Iterator[Runtime]:
    settings = Settings(
        database_url=database_url, redis_url=redis_space.url, redis_prefix=redis_space.prefix
    )
    made = Runtime(settings)
    claims.register_worker(made.engine, made.worker_id, "this process")
    yield made
    made.close()


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[list[Command]]:
    """What is said to Redis, round trip by round trip; nothing really is."""
    heard: list[list[Command]] = []
    monkeypatch.setattr(Batches, "_exchange", lambda _, commands: heard.append([*commands]))
    return heard


def sent(runtime: Runtime) -> tuple[Any, str]:
    world = World(runtime.engine)
    chat = world.chat(Status.WAITING)
    effects = world.do(machine.send, chat.id, words("And then?"))
    return effects, key_of(runtime.settings.redis_prefix, chat.id)


def test_readers_are_told_before_the_step_is_rung_for(
    runtime: Runtime, said: list[list[Command]], monkeypatch: pytest.MonkeyPatch
) -> None:
    effects, stream = sent(runtime)
    told_by_then: list[str] = []
    monkeypatch.setattr(dispatch, "dispatch", lambda _: told_by_then.extend(_kinds(said, stream)))
    runtime.events.add(effects.chat_id, "title", {"title": "Before"}, now=False)
    dispatch.publish(runtime, effects)
    assert told_by_then == ["title", "message", "status"]


def test_a_redis_that_is_away_keeps_nobody_from_the_broker(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Batches, __: object) -> None:
        raise redis.ConnectionError("gone")

    rung: list[object] = []
    monkeypatch.setattr(Batches, "_exchange", refuse)
    monkeypatch.setattr(dispatch, "dispatch", rung.append)
    effects, _ = sent(runtime)
    dispatch.publish(runtime, effects)
    assert rung == [effects.dispatch]


def _kinds(said: list[list[Command]], stream: str) -> list[str]:
    adding = [each for commands in said for each in commands if each[0] == "XADD"]
    assert {each[1] for each in adding} == {stream}
    return [json.loads(str(each[-1]))[0] for each in adding]
