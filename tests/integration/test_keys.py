"""Idempotency keys: a repeated request gets the first one's answer, and nothing happens twice."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from models import machine
from models.engine import transaction
from models.machine import NewChat
from rejoinder.core.errors import Rejected
from rejoinder.core.messages import WhenBusy
from rejoinder.core.state import Status
from tests.chats import World, said, words
from tests.integration.reading import history, queue, queued_id

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from rejoinder.core.effects import Effects

NEW = NewChat("owner", words("hello"), model="big", labels={"team": "a"}, key="k")


@pytest.fixture
def world(engine: Engine) -> World:
    return World(engine)


def nothing_to_publish(effects: Effects) -> bool:
    return not (
        effects.changed or effects.dispatch or effects.events or effects.hints or effects.ended
    )


def test_a_chat_is_created_once(world: World) -> None:
    first = world.do(machine.create, NEW)
    before = world.dump()
    again = world.do(machine.create, NEW)
    assert (again.chat_id, again.turn_id) == (first.chat_id, first.turn_id)
    assert again.message_ids == first.message_ids
    assert nothing_to_publish(again)
    assert world.dump() == before


def test_the_answer_is_the_same_long_after(world: World) -> None:
    first = world.do(machine.create, NEW)
    world.do(machine.finish_turn, world.claim(first.chat_id), message=said("Done."))
    again = world.do(machine.create, NEW)
    assert (again.chat_id, again.turn_id) == (first.chat_id, first.turn_id)
    assert again.status is Status.WAITING
    with transaction(world.engine) as tx:
        machine.archive(tx, first.chat_id)
    assert world.do(machine.create, NEW).turn_id == first.turn_id


@pytest.mark.parametrize(
    "other",
    [
        NewChat("owner", words("other"), model="big", labels={"team": "a"}, key="k"),
        NewChat("owner", words("hello"), model="small", labels={"team": "a"}, key="k"),
        NewChat("owner", words("hello"), model="big", labels={"team": "b"}, key="k"),
        NewChat("owner", words("hello"), words("Hm."), model="big", labels={"team": "a"}, key="k"),
        NewChat(
            "owner", words("hello"), model="big", labels={"team": "a"}, options={"t": 1}, key="k"
        ),
    ],
    ids=["content", "model", "labels", "system", "options"],
)
def test_a_key_stands_for_one_request(world: World, other: NewChat) -> None:
    world.do(machine.create, NEW)
    before = world.dump()
    with pytest.raises(Rejected, match="used for a different request: repeat the same request"):
        world.do(machine.create, other)
    assert world.dump() == before


def test_another_owner_may_use_the_same_key(world: World) -> None:
    mine = world.do(machine.create, NEW)
    theirs = world.do(machine.create, NewChat("somebody else", words("hello"), key="k"))
    assert mine.chat_id != theirs.chat_id


def test_a_message_is_sent_once_while_it_is_queued_promoted_and_answered(world: World) -> None:
    subject = world.running()

    def send() -> Effects:
        return world.do(machine.send, subject.id, words("more"), key="k")

    first = send()
    before = world.dump()
    again = send()
    assert (again.turn_id, again.queued_id) == (first.turn_id, first.queued_id)
    assert again.queued_id == queued_id(world, "more")
    assert nothing_to_publish(again)
    assert world.dump() == before
    world.do(machine.finish_turn, subject.held)
    promoted = send()
    assert (promoted.turn_id, promoted.queued_id) == (first.turn_id, None)
    assert len(promoted.message_ids) == 1
    world.do(machine.finish_turn, world.claim(subject.id))
    assert send().turn_id == first.turn_id
    assert history(world, subject.id) == ["user: hello", "user: more"]


def test_a_repeated_message_that_stopped_a_turn_gets_the_same_answer(world: World) -> None:
    subject = world.new()

    def send() -> Effects:
        stop = WhenBusy.INTERRUPT
        return world.do(machine.send, subject.id, words("stop"), when_busy=stop, key="k")

    first, again = send(), send()
    assert (again.turn_id, again.queued_id) == (first.turn_id, first.queued_id)
    assert again.message_ids == first.message_ids


def test_a_key_of_a_message_stands_for_one_request(world: World) -> None:
    subject, other = world.running(), world.running()
    world.do(machine.send, subject.id, words("more"), key="k")
    before = world.dump()
    repeat = partial(world.do, machine.send, subject.id, words("more"), key="k")
    for different in (
        partial(world.do, machine.send, subject.id, words("less"), key="k"),
        partial(world.do, machine.send, other.id, words("more"), key="k"),
        partial(repeat, model="big"),
        partial(repeat, when_busy=WhenBusy.INTERRUPT),
        partial(world.do, machine.create, NewChat("owner", words("more"), key="k")),
    ):
        with pytest.raises(Rejected, match="different request"):
            different()
    assert world.dump() == before


def test_a_refused_request_does_not_use_up_its_key(world: World) -> None:
    subject = world.running()
    with pytest.raises(Rejected):
        world.do(machine.send, subject.id, words("more"), when_busy=WhenBusy.REJECT, key="k")
    assert world.dump()["idempotency_keys"] == []
    world.do(machine.finish_turn, subject.held)
    effects = world.do(machine.send, subject.id, words("more"), when_busy=WhenBusy.REJECT, key="k")
    assert effects.changed


def test_a_message_that_was_deleted_from_the_queue_is_not_sent_again(world: World) -> None:
    subject = world.running()
    first = world.do(machine.send, subject.id, words("more"), key="k")
    world.do(machine.delete_queued, subject.id, first.queued_id)
    again = world.do(machine.send, subject.id, words("more"), key="k")
    assert (again.turn_id, again.queued_id, again.changed) == (first.turn_id, None, False)
    assert queue(world, subject.id) == []


@pytest.mark.parametrize("key", ["", "x" * 256, "a\x00b", "a\ud800b"])
def test_a_key_that_cannot_be_kept_is_refused(world: World, key: str) -> None:
    with pytest.raises(Rejected):
        world.do(machine.create, NewChat("owner", words("hello"), key=key))
    assert world.dump()["chats"] == []
