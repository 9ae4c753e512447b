"""A steered message races with the end of a step, of the turn, or of its worker: both orders.

Whoever is first, it is said once, to this turn or to the next one; nothing is lost or doubled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from models import claims, machine
from rejoinder.core.errors import Rejected, Stale, StopRequested
from rejoinder.core.messages import WhenBusy
from rejoinder.core.parts import ToolResult
from rejoinder.core.state import Status
from tests.chats import DEAD_AFTER, Subject, said, words
from tests.integration.racing import Order, Track, history, queue, refused, track_for, tx

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

    from tests.integration.racing import Act

FOUND = ToolResult("call-1", "found")


@pytest.fixture(params=list(Order), ids=lambda order: order.value)
def track(engine: Engine, request: pytest.FixtureRequest) -> Iterator[Track]:
    with track_for(engine, request.param) as track:
        yield track


def steer(chat: Subject, text: str = "and this") -> Act:
    return tx(machine.send, chat.id, words(text), when_busy=WhenBusy.STEER)


def test_a_message_while_the_step_ends_is_in_the_next_one(track: Track) -> None:
    world = track.world
    for _ in track.rounds():
        chat = world.asking(start=True)
        got = track.race(steer(chat), tx(machine.commit, chat.held, results=[FOUND]))
        assert not refused(got.left, Rejected)
        assert [role for role, _ in history(world, chat.id)] == [
            "user",
            "assistant",
            "tool",
            "user",
        ]
        assert queue(world, chat.id) == []
        row = world.row(chat.id)
        assert (row["status"], row["turn_id"] != got.left.turn_id) == ("pending", True)


def test_a_message_while_the_turn_ends_is_the_next_turn(track: Track) -> None:
    world = track.world
    for _ in track.rounds():
        chat = world.running()
        got = track.race(steer(chat), tx(machine.finish_turn, chat.held, message=said("Done.")))
        assert not refused(got.left, Rejected)
        assert [text for _, text in history(world, chat.id)] == ["hello", "Done.", "and this"]
        row = world.row(chat.id)
        assert (row["status"], row["turn_id"]) == ("pending", got.left.turn_id)
        assert [end.answer for end in got.right.ended] == ["Done."]


def test_a_message_and_a_claim_of_the_same_chat(track: Track) -> None:
    world = track.world
    worker = world.worker()
    for _ in track.rounds():
        chat = world.new()
        got = track.race(
            steer(chat),
            lambda engine: claims.claim(engine, chat.id, worker, dead_after=DEAD_AFTER),  # noqa: B023
        )
        world.do(machine.commit, got.right.fence)
        assert [text for _, text in history(world, chat.id)] == ["hello", "and this"]
        assert queue(world, chat.id) == []


def test_a_message_while_its_owner_is_found_dead(track: Track) -> None:
    world = track.world
    for _ in track.rounds():
        chat = world.running()
        got = track.race(steer(chat), tx(machine.recover, chat.id, chat.held.lease_id))
        assert not refused(got.right, Stale)
        assert [text for _, text in history(world, chat.id)] == ["hello", "and this"]


def test_a_message_and_a_stop(track: Track) -> None:
    world = track.world
    for _ in track.rounds():
        chat = world.running()
        track.race(steer(chat), tx(machine.interrupt, chat.id))
        with pytest.raises(StopRequested):
            world.do(machine.commit, chat.held)
        world.do(machine.finish_interrupt, chat.held, partial=said("I was"))
        assert [text for _, text in history(world, chat.id)] == ["hello", "I was", "and this"]
        assert world.row(chat.id)["status"] == Status.PENDING


def test_two_messages_at_once_both_join(track: Track) -> None:
    world = track.world
    for _ in track.rounds():
        chat = world.new()
        track.race(steer(chat, "one"), steer(chat, "two"))
        texts = [text for _, text in history(world, chat.id)]
        assert sorted(texts) == ["hello", "one", "two"]
        if track.order is not Order.FREE:
            assert texts[1] == ("one" if track.order is Order.LEFT else "two")
