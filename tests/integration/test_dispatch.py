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
from tasks import app, dispatch
from tasks.runtime import Runtime
from tests.chats import World, words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rejoinder.batches import Command
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
    monkeypatch.setattr(app.conf, "broker_url", redis_space.url)
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


def test_readers_are_told_before_the_step_is_rung_for_in_one_round_trip(
    runtime: Runtime, said: list[list[Command]]
) -> None:
    effects, stream = sent(runtime)
    dispatch.publish(runtime, effects)
    (commands,) = said
    assert [command[0] for command in commands] == ["XADD", "XADD", "LPUSH", "EXPIRE"]
    assert [json.loads(str(each[-1]))[0] for each in commands[:2]] == ["message", "status"]
    assert [each[1] for each in commands[:2]] == [stream] * 2
    rung = json.loads(str(commands[2][2]))
    assert commands[2][1] == "rejoinder.steps"
    assert rung["headers"]["id"] == str(effects.dispatch.step_id)
    assert rung["headers"]["stamps"] == {"turn_id": str(effects.dispatch.turn_id)}


def test_what_was_left_before_goes_first(runtime: Runtime, said: list[list[Command]]) -> None:
    effects, _ = sent(runtime)
    runtime.events._waiting.append((effects.chat_id, "title", {"title": "Before"}))
    dispatch.publish(runtime, effects)
    kinds = [json.loads(str(each[-1]))[0] for each in said[0] if each[0] == "XADD"]
    assert kinds == ["title", "message", "status"]


def test_if_redis_does_not_take_it_the_broker_is_asked_again(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Batches, __: object) -> None:
        raise redis.ConnectionError("gone")

    rung: list[object] = []
    monkeypatch.setattr(Batches, "_exchange", refuse)
    monkeypatch.setattr(dispatch, "dispatch", rung.append)
    effects, _ = sent(runtime)
    dispatch.publish(runtime, effects)
    assert rung == [effects.dispatch] * 2


def test_with_another_broker_readers_are_told_first(
    runtime: Runtime, said: list[list[Command]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app.conf, "broker_url", "amqp://elsewhere")
    told_by_then: list[int] = []
    monkeypatch.setattr(dispatch, "dispatch", lambda _: told_by_then.append(len(said)))
    effects, _ = sent(runtime)
    dispatch.publish(runtime, effects)
    assert told_by_then == [len(said)]
    assert all(command[0] != "LPUSH" for command in said[0])
