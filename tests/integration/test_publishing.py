"""What a committed transition makes known: each to the right one, and none at the other's cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from uuid_utils.compat import uuid7

from models import claims, machine
from rejoinder.core.effects import Cause, Dispatch
from rejoinder.core.settings import Settings
from rejoinder.core.state import Status
from tasks import app, dispatch, hints, stopping
from tasks import runtime as runtimes
from tasks.dispatch import fall_back, publish
from tasks.runtime import Runtime
from tests.chats import DEAD_AFTER, World, said, words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
    monkeypatch.setattr(runtimes, "_current", made)
    monkeypatch.setattr(stopping, "this", stopping.Stopping())
    yield made
    made.close()


@pytest.fixture
def world(runtime: Runtime) -> World:
    return World(runtime.engine)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The messages of steps that are given to the broker."""
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(
        app, "send_task", lambda name, **options: given.append({"name": name, **options})
    )
    return given


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The turns whose results are stored."""
    given: list[object] = []
    monkeypatch.setattr(dispatch, "store_result", lambda _, end: given.append(end.turn_id))
    return given


def refuse(*_args: object, **_options: object) -> None:
    raise ConnectionError("gone")


def test_a_step_of_this_process_is_stopped_without_the_way_through_redis(
    runtime: Runtime, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints, "send", refuse)
    fence = world.claim(world.new().id, runtime.worker_id)
    with runtime.running(fence.chat_id, fence.lease_id) as step:
        publish(runtime, world.do(machine.interrupt, fence.chat_id))
        assert step.cancellation.cause is Cause.INTERRUPT


def test_a_step_of_another_process_gets_a_hint(
    runtime: Runtime, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[object, object]] = []
    monkeypatch.setattr(
        hints, "send", lambda _, __, hint: given.append((hint.worker_id, hint.lease_id))
    )
    fence = world.claim(world.new().id)
    publish(runtime, world.do(machine.interrupt, fence.chat_id))
    assert given == [(world.worker_id, fence.lease_id)]


def test_a_step_is_rung_for_by_its_own_id_and_can_be_found_by_its_turn(
    runtime: Runtime, world: World, sent: list[dict[str, Any]]
) -> None:
    effects = world.do(machine.send, world.chat(Status.WAITING).id, words("And then?"))
    publish(runtime, effects)
    assert effects.dispatch is not None
    (message,) = sent
    assert message["task_id"] == str(effects.dispatch.step_id)
    assert message["kwargs"] == {"chat_id": str(effects.chat_id)}
    assert (message["stamped_headers"], message["turn_id"]) == (["turn_id"], str(effects.turn_id))


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("away", ["broker", "readers"])
def test_what_cannot_be_published_fails_nobody(
    runtime: Runtime, world: World, monkeypatch: pytest.MonkeyPatch, away: str
) -> None:
    rung: list[Dispatch] = []
    if away == "broker":
        monkeypatch.setattr(app, "send_task", refuse)
    else:
        monkeypatch.setattr(runtime.events, "add", refuse)
        monkeypatch.setattr(dispatch, "dispatch", rung.append)
    effects = world.do(machine.send, world.chat(Status.WAITING).id, words("And then?"))
    publish(runtime, effects)
    assert rung == ([] if away == "broker" else [effects.dispatch])


def test_a_step_that_is_not_due_is_rung_for_when_it_is(
    sent: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    later: list[tuple[float, Callable[[], None]]] = []
    monkeypatch.setattr(dispatch, "after", lambda seconds, act: later.append((seconds, act)))
    dispatch.dispatch(Dispatch(uuid7(), uuid7(), uuid7(), delay_seconds=7.0))
    ((seconds, act),) = later
    assert (seconds, sent) == (7.0, [])
    act()
    assert len(sent) == 1


def test_only_a_result_that_was_stored_counts_as_announced(
    runtime: Runtime, world: World, stored: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def announced() -> list[bool]:
        return [r["announced"] for r in world.read("SELECT announced FROM rejoinder.turns")]

    fence = world.claim(world.new().id)
    done = world.do(machine.finish_turn, fence, message=said("Done."))
    with monkeypatch.context() as away:
        away.setattr(dispatch, "store_result", refuse)
        publish(runtime, done)
    assert announced() == [False]
    publish(runtime, done)
    assert announced() == [True]
    assert stored == [end.turn_id for end in done.ended]


def test_a_chat_that_was_claimed_for_a_step_that_falls_back_is_anybodys(
    runtime: Runtime, world: World, sent: list[dict[str, Any]]
) -> None:
    chat = world.new()
    claim = claims.claim(runtime.engine, chat.id, runtime.worker_id, dead_after=DEAD_AFTER)
    assert claim is not None
    fall_back(Dispatch(chat.id, claim.turn_id, claim.step_id), claim)
    row = world.row(chat.id)
    assert (row["status"], row["lease_id"], row["crashes"]) == ("pending", None, 0)
    assert [message["task_id"] for message in sent] == [str(row["step_id"])]


def test_a_parent_that_waits_is_woken_when_its_child_rests(
    runtime: Runtime, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[object] = []
    monkeypatch.setattr(dispatch, "wake", lambda _, chat_id: woken.append(chat_id))
    monkeypatch.setattr(dispatch, "store_result", lambda *_: None)
    parent = world.new()
    child = world.new(parent_id=parent.id)
    fence = world.claim(child.id)
    publish(runtime, world.do(machine.finish_turn, fence, message=said("Done.")))
    assert woken == [parent.id]
