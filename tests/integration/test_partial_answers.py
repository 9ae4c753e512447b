"""What readers had seen of an answer is kept by a stop, also while nobody has the chat."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from models import claims, machine
from models.sweep import sweep
from rejoinder.core.messages import NewMessage, Role, Usage, WhenBusy
from rejoinder.core.parts import Text
from tests.chats import DEAD_AFTER, Subject, World, call, said, words
from tests.integration.invariants import assert_invariants
from tests.integration.racing import silence
from tests.integration.reading import history, message_id, sql, turn

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

    from rejoinder.core.effects import Effects

HALF = NewMessage(
    Role.ASSISTANT,
    (Text("Half an ans"), call()),
    model="scripted:echo",
    usage=Usage(input_tokens=7, output_tokens=3),
    runtime_ms=120,
    cost_micros=11,
)
STOPPED = [
    "user: hello",
    "assistant: Half an ans [call-1]",
    "tool: call-1!The user stopped the turn",
]


@pytest.fixture
def world(engine: Engine) -> World:
    return World(engine)


def released(world: World) -> Subject:
    chat = world.running()
    world.do(machine.release, chat.held, partial=HALF)
    return chat


def recovered(world: World) -> Subject:
    chat = world.running()
    world.do(machine.recover, chat.id, chat.held.lease_id, partial=HALF)
    return chat


def swept(world: World) -> Subject:
    worker_id = world.worker()
    chat = world.new()
    chat.fence = world.claim(chat.id, worker_id)
    silence(world, worker_id)
    sweep(world.engine, dead_after=DEAD_AFTER, rebuild=lambda *_: HALF)
    return chat


LEFT = pytest.mark.parametrize("leave", [released, recovered, swept])


def shown(world: World, chat: Subject) -> list[str]:
    return [each.split(" before this call")[0] for each in history(world, chat.id)]


@LEFT
def test_a_stop_saves_what_a_worker_left(world: World, leave: Callable[[World], Subject]) -> None:
    chat = leave(world)
    turn_id = world.row(chat.id)["turn_id"]
    effects = world.do(machine.interrupt, chat.id)
    row = world.row(chat.id)
    assert (row["status"], row["partial"]) == ("waiting", None)
    assert shown(world, chat) == STOPPED
    assert turn(world, turn_id)["answer_id"] == message_id(world, "Half an ans [call-1]")
    assert [end.answer for end in effects.ended] == ["Half an ans"]
    assert "preview_reset" not in [event.kind for event in effects.events]
    assert_invariants(world.engine)


@LEFT
def test_a_message_that_stops_the_turn_saves_it_too(
    world: World, leave: Callable[[World], Subject]
) -> None:
    chat = leave(world)
    world.do(machine.send, chat.id, words("Else"), when_busy=WhenBusy.INTERRUPT)
    assert history(world, chat.id)[1] == "assistant: Half an ans [call-1]"
    assert history(world, chat.id)[-1] == "user: Else"
    assert_invariants(world.engine)


@LEFT
def test_whoever_claims_the_chat_drops_it_and_tells_readers_first(
    world: World, leave: Callable[[World], Subject]
) -> None:
    chat = leave(world)
    got = claims.claim(world.engine, chat.id, world.worker_id, dead_after=DEAD_AFTER)
    assert got is not None
    assert [event.kind for event in got.events] == ["preview_reset", "status"]
    assert world.row(chat.id)["partial"] is None
    assert got.known is None or got.known.chat == world.row(chat.id)
    world.do(machine.finish_turn, got.fence, message=said("Done."))
    assert history(world, chat.id) == ["user: hello", "assistant: Done."]
    again = world.do(machine.send, chat.id, words("more"))
    later = claims.claim(world.engine, again.chat_id, world.worker_id, dead_after=DEAD_AFTER)
    assert later is not None
    assert [event.kind for event in later.events] == ["status"]


def edited(world: World, chat: Subject) -> Effects:
    return world.do(machine.edit, chat.id, message_id(world, "hello"), words("other"))


def steered(world: World, chat: Subject) -> Effects:
    return world.do(machine.send, chat.id, words("more"), when_busy=WhenBusy.STEER)


@pytest.mark.parametrize("change", [edited, steered])
@LEFT
def test_another_history_drops_it_and_readers_are_told(
    world: World,
    leave: Callable[[World], Subject],
    change: Callable[[World, Subject], Effects],
) -> None:
    chat = leave(world)
    effects = change(world, chat)
    assert world.row(chat.id)["partial"] is None
    assert "preview_reset" in [event.kind for event in effects.events]
    world.do(machine.interrupt, chat.id)
    assert "Half an ans" not in str(history(world, chat.id))
    assert_invariants(world.engine)


def test_words_that_a_steering_message_overtakes_are_not_kept(world: World) -> None:
    chat = world.running()
    world.do(machine.send, chat.id, words("more"), when_busy=WhenBusy.STEER)
    effects = world.do(machine.release, chat.held, partial=HALF)
    assert world.row(chat.id)["partial"] is None
    assert "preview_reset" in [event.kind for event in effects.events]


def test_a_queued_message_and_a_title_leave_it_alone(world: World) -> None:
    chat = released(world)
    world.do(machine.send, chat.id, words("later"))
    world.do(machine.set_labels, chat.id, {"a": "b"})
    world.do(machine.interrupt, chat.id)
    assert history(world, chat.id)[1] == "assistant: Half an ans [call-1]"
    assert history(world, chat.id)[-1] == "user: later"


def test_what_it_took_is_counted_once(world: World) -> None:
    stopped, went_on = released(world), released(world)
    world.do(machine.interrupt, stopped.id)
    world.claim(went_on.id)
    for chat in (stopped, went_on):
        row = world.row(chat.id)
        counted = [row[f"used_{name}"] for name in ("calls", "input", "output", "micros")]
        assert counted == [1, 7, 3, 11]
    (kept,) = world.read("SELECT * FROM rejoinder.messages WHERE role = 'assistant'")
    assert (kept["model"], kept["output_tokens"], kept["cost_micros"]) == ("scripted:echo", 3, 11)
    assert kept["runtime_ms"] == 120


def test_a_worker_that_dies_before_its_first_word_keeps_nothing(world: World) -> None:
    chat = released(world)
    world.do(machine.recover, chat.id, world.claim(chat.id).lease_id)
    world.do(machine.interrupt, chat.id)
    assert history(world, chat.id) == ["user: hello"]


def test_a_chat_that_is_given_up_keeps_no_partial(world: World) -> None:
    chat = world.new()
    sql(world, "UPDATE rejoinder.chats SET crashes = 2 WHERE id = :id", id=chat.id)
    world.do(machine.recover, chat.id, world.claim(chat.id).lease_id, partial=HALF)
    assert (world.row(chat.id)["status"], world.row(chat.id)["partial"]) == ("error", None)


def test_rebuilding_takes_a_bounded_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words are worth less than going on: Redis may be away, and slow to say so."""
    monkeypatch.setattr("models.sweep.REBUILD_SECONDS", 0.0)
    chat = swept(world)
    assert (world.row(chat.id)["status"], world.row(chat.id)["partial"]) == ("pending", None)


def test_who_dies_while_the_words_of_others_are_rebuilt_is_the_next_sweeps(world: World) -> None:
    """Else the words of that chat would not have been looked for."""
    first, second = world.worker("first"), world.worker("second")
    chats = {name: world.new() for name in ("first", "second")}
    for name, worker_id in (("first", first), ("second", second)):
        world.claim(chats[name].id, worker_id)
    silence(world, first)

    def rebuild(*_: object) -> NewMessage:
        silence(world, second)
        return HALF

    for expected in ("running", "pending"):
        sweep(world.engine, dead_after=DEAD_AFTER, rebuild=rebuild)
        assert world.row(chats["second"].id)["status"] == expected
    assert all(world.row(chat.id)["partial"] for chat in chats.values())
