"""Steering: a message joins the turn that is open at the next step, in order, and ends with it.

Races with the end of a step or of the turn are in `test_steering_races.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from models import claims, machine
from models.engine import transaction
from rejoinder.core.errors import Rejected
from rejoinder.core.messages import (
    Budget,
    CallKind,
    Compaction,
    NewMessage,
    Role,
    TurnState,
    Visibility,
    WhenBusy,
)
from rejoinder.core.model import StopReason
from rejoinder.core.parts import ToolResult
from rejoinder.core.state import Status
from tests.chats import BOOM, Subject, World, call, said, words
from tests.integration.invariants import assert_invariants
from tests.integration.reading import history, message_id, queue, queued_id, sql, turn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from sqlalchemy import Engine

    from rejoinder.core.effects import Effects

FOUND = ToolResult("call-1", "found")
SUMMARY = Compaction(
    NewMessage(Role.USER, words("In short."), Visibility.MODEL, compressed=True),
    NewMessage(Role.ASSISTANT, words("Summed up."), Visibility.USER, compressed=True),
)
LOOKED = ["user: hello", "assistant: Let me look. [call-1]", "tool: call-1=found"]


@pytest.fixture
def world(engine: Engine) -> Iterator[World]:
    made = World(engine)
    yield made
    assert_invariants(engine)


def steer(world: World, chat: Subject, text: str, **more: object) -> Effects:
    return world.do(machine.send, chat.id, words(text), when_busy=WhenBusy.STEER, **more)


def ends(effects: Effects) -> dict[UUID, tuple[TurnState, str | None]]:
    return {end.turn_id: (end.state, end.answer) for end in effects.ended}


# Where the chat is when the message comes.


def test_between_two_steps_it_joins_at_once(world: World) -> None:
    chat = world.new()
    opened = world.row(chat.id)["turn_id"]
    sent = steer(world, chat, "and this")
    assert history(world, chat.id) == ["user: hello", "user: and this"]
    assert (sent.queued_id, sent.status) == (None, Status.PENDING)
    assert world.row(chat.id)["turn_id"] == opened != sent.turn_id
    assert (turn(world, sent.turn_id)["state"], turn(world, sent.turn_id)["joined_id"]) == (
        "joined",
        opened,
    )
    assert sent.dispatch is not None, "the step that was rung for is another one now"


def test_between_two_steps_with_open_calls_it_waits_for_their_results(world: World) -> None:
    chat = world.asking()
    world.do(machine.release, chat.held)
    assert steer(world, chat, "and this").queued_id is not None
    fence = world.claim(chat.id)
    world.do(machine.commit, fence, results=[FOUND])
    assert history(world, chat.id) == [*LOOKED, "user: and this"]


def test_while_a_step_runs_it_joins_when_the_step_is_done(world: World) -> None:
    chat = world.asking(start=True)
    sent = steer(world, chat, "and this")
    assert (queue(world, chat.id), sent.status) == (["and this"], Status.RUNNING)
    done = world.do(machine.commit, chat.held, results=[FOUND])
    assert history(world, chat.id) == [*LOOKED, "user: and this"]
    assert queue(world, chat.id) == []
    answered = world.do(machine.finish_turn, world.claim(chat.id), message=said("Done."))
    assert ends(answered) == {
        done.turn_id: (TurnState.FINISHED, "Done."),
        sent.turn_id: (TurnState.FINISHED, "Done."),
    }
    assert answered.ended[0].turn_id == done.turn_id


def test_while_it_is_being_stopped_it_waits_and_is_the_next_turn(world: World) -> None:
    chat = world.chat(Status.INTERRUPTING)
    sent = steer(world, chat, "and this")
    stopped = world.do(machine.finish_interrupt, chat.held, partial=said("I was"))
    assert history(world, chat.id) == ["user: hello", "assistant: I was", "user: and this"]
    assert stopped.status is Status.PENDING
    assert world.row(chat.id)["turn_id"] == sent.turn_id
    assert turn(world, sent.turn_id)["state"] == "open"


def test_while_an_answer_is_asked_for_it_waits_for_that(world: World) -> None:
    chat = world.chat(Status.REQUIRES_ACTION)
    steer(world, chat, "and this")
    assert world.row(chat.id)["status"] == "requires_action"
    world.do(machine.submit_results, chat.id, [FOUND])
    assert history(world, chat.id) == [*LOOKED, "user: and this"]


def test_while_it_sleeps_it_waits_for_what_wakes_it(world: World) -> None:
    chat = world.chat(Status.SLEEPING)
    steer(world, chat, "and this")
    assert world.row(chat.id)["status"] == "sleeping"
    world.do(machine.wake, chat.id, FOUND)
    assert history(world, chat.id) == [*LOOKED, "user: and this"]


def test_an_answer_from_outside_that_comes_between_two_steps_lets_it_join(world: World) -> None:
    chat = world.asking(kind=CallKind.EXTERNAL, start=True)
    world.do(machine.release, chat.held)
    steer(world, chat, "and this")
    world.do(machine.wake, chat.id, FOUND)
    assert world.row(chat.id)["status"] == "pending"
    assert history(world, chat.id) == [*LOOKED, "user: and this"]


def test_while_the_budget_is_used_up_it_waits_until_it_is_raised(world: World) -> None:
    chat = world.running()
    world.do(machine.exceed_budget, chat.held, budget=Budget(), deadline_seconds=60, spent={})
    steer(world, chat, "and this")
    assert queue(world, chat.id) == ["and this"]
    with transaction(world.engine) as tx:
        machine.set_budget(tx, chat.id, Budget(1000))
    assert history(world, chat.id) == ["user: hello", "user: and this"]


@pytest.mark.parametrize("status", [Status.WAITING, Status.ERROR])
def test_at_rest_it_is_a_turn_of_its_own(world: World, status: Status) -> None:
    chat = world.chat(status)
    sent = steer(world, chat, "and this")
    assert (sent.status, sent.queued_id) == (Status.PENDING, None)
    assert turn(world, sent.turn_id)["state"] == "open"


def test_behind_a_backlog_at_rest_it_keeps_its_place(world: World) -> None:
    chat = world.chat(Status.ERROR, queued=2)
    steer(world, chat, "and this")
    assert queue(world, chat.id) == ["queued 1", "and this"]


# What it may not do.


def test_it_does_not_join_a_turn_that_only_compacts(world: World) -> None:
    chat = world.chat(Status.WAITING)
    world.do(machine.request_compaction, chat.id)
    sent = steer(world, chat, "and this")
    assert queue(world, chat.id) == ["and this"]
    fence = world.claim(chat.id)
    steer(world, chat, "and that")
    world.do(machine.release, fence)
    assert queue(world, chat.id) == ["and this", "and that"]
    compacted = world.do(machine.store_compaction, world.claim(chat.id), SUMMARY)
    assert world.row(chat.id)["turn_id"] == sent.turn_id
    assert sent.turn_id not in ends(compacted)


def test_a_compaction_within_a_turn_is_the_end_of_a_step(world: World) -> None:
    chat = world.running()
    steer(world, chat, "and this")
    world.do(machine.store_compaction, chat.held, SUMMARY)
    assert history(world, chat.id)[-1] == "user: and this"


def test_it_does_not_come_between_the_halves_of_a_paused_answer(world: World) -> None:
    chat = world.running()
    paused = NewMessage(Role.ASSISTANT, words("First"), stop_reason=StopReason.PAUSE)
    world.do(machine.commit, chat.held, message=paused)
    steer(world, chat, "and this")
    assert queue(world, chat.id) == ["and this"]
    recorded = world.do(machine.record, world.claim(chat.id), said("then", call()))
    world.do(machine.commit, recorded.fence, results=[FOUND])
    assert history(world, chat.id)[-2:] == ["tool: call-1=found", "user: and this"]


def test_it_does_not_end_the_wait_of_a_retry_that_began_after_it(world: World) -> None:
    chat = world.running()
    steer(world, chat, "and this")
    world.do(machine.retry_later, chat.held, delay_seconds=60, retry_state={"kind": "busy"})
    row = world.row(chat.id)
    assert (row["attempt"], row["run_after"] is not None) == (1, True)
    assert queue(world, chat.id) == ["and this"]


def test_sent_while_a_retry_waits_it_is_tried_at_once(world: World) -> None:
    chat = world.running()
    world.do(machine.retry_later, chat.held, delay_seconds=60, retry_state={"kind": "busy"})
    sent = steer(world, chat, "and this")
    row = world.row(chat.id)
    assert (row["attempt"], row["run_after"], row["retry_state"]) == (0, None, None)
    assert sent.dispatch is not None
    assert sent.dispatch.delay_seconds == 0


# Order, models, and the queue.


def test_several_keep_their_order_and_others_stay_behind(world: World) -> None:
    chat = world.asking(start=True)
    world.do(machine.send, chat.id, words("later"))
    for text in ("one", "two"):
        steer(world, chat, text)
    world.do(machine.send, chat.id, words("last"))
    steer(world, chat, "three")
    world.do(machine.commit, chat.held, results=[FOUND])
    assert history(world, chat.id) == [*LOOKED, "user: one", "user: two", "user: three"]
    assert queue(world, chat.id) == ["later", "last"]


def test_one_that_comes_during_the_last_step_is_the_next_turn_in_its_place(world: World) -> None:
    chat = world.running()
    world.do(machine.send, chat.id, words("first in the queue"))
    sent = steer(world, chat, "and this")
    ended = world.do(machine.finish_turn, chat.held, message=said("Done."))
    assert sent.turn_id not in ends(ended)
    assert history(world, chat.id)[-1] == "user: first in the queue"
    assert queue(world, chat.id) == ["and this"]
    fence = world.do(machine.record, world.claim(chat.id), said("Hm.", call())).fence
    world.do(machine.commit, fence, results=[FOUND])
    assert history(world, chat.id)[-1] == "user: and this"


def test_its_model_is_the_chats_from_then_on(world: World) -> None:
    chat = world.asking(start=True)
    steer(world, chat, "and this", model="scripted:other")
    assert world.row(chat.id)["model"] == ""
    world.do(machine.commit, chat.held, results=[FOUND])
    assert world.row(chat.id)["model"] == "scripted:other"


def test_a_deleted_one_does_not_join(world: World) -> None:
    chat = world.asking(start=True)
    sent = steer(world, chat, "and this")
    deleted = world.do(machine.delete_queued, chat.id, queued_id(world, "and this"))
    assert ends(deleted) == {sent.turn_id: (TurnState.CANCELLED, None)}
    world.do(machine.commit, chat.held, results=[FOUND])
    assert history(world, chat.id) == LOOKED


def test_one_that_has_joined_cannot_be_deleted(world: World) -> None:
    chat = world.asking(start=True)
    sent = steer(world, chat, "and this")
    world.do(machine.commit, chat.held, results=[FOUND])
    for act in (machine.delete_queued, machine.promote_queued):
        with pytest.raises(Rejected, match="queue"):
            world.do(act, chat.id, sent.queued_id)


def test_a_promoted_one_stops_the_turn_instead_of_joining_it(world: World) -> None:
    chat = world.asking(start=True)
    world.do(machine.send, chat.id, words("before it"))
    sent = steer(world, chat, "and this")
    world.do(machine.promote_queued, chat.id, queued_id(world, "and this"))
    stopped = world.do(machine.finish_interrupt, chat.held)
    assert history(world, chat.id)[-1] == "user: and this"
    assert world.row(chat.id)["turn_id"] == sent.turn_id
    assert sent.turn_id not in ends(stopped)


def test_a_full_queue_takes_none(world: World) -> None:
    chat = world.chat(Status.RUNNING, queued=20)
    with pytest.raises(Rejected, match="20"):
        steer(world, chat, "and this")


# How it ends.


def joined(world: World) -> tuple[Subject, UUID, UUID]:
    """A running chat whose turn another one has joined: the chat, and both turns."""
    chat = world.asking(start=True)
    sent = steer(world, chat, "and this")
    opened = world.do(machine.commit, chat.held, results=[FOUND]).turn_id
    chat.fence = world.claim(chat.id)
    assert opened is not None
    assert sent.turn_id is not None
    return chat, opened, sent.turn_id


def test_stopped_with_the_turn_it_joined(world: World) -> None:
    chat, opened, own = joined(world)
    world.do(machine.interrupt, chat.id)
    stopped = world.do(machine.finish_interrupt, chat.held, partial=said("I was"))
    assert ends(stopped) == dict.fromkeys((opened, own), (TurnState.INTERRUPTED, "I was"))


def test_failed_with_the_turn_it_joined(world: World) -> None:
    chat, opened, own = joined(world)
    failed = world.do(machine.fail, chat.held, BOOM)
    assert ends(failed) == dict.fromkeys((opened, own), (TurnState.FAILED, None))
    assert turn(world, own)["error"]["kind"] == "generic"


@pytest.mark.parametrize("edited", ["hello", "and this"])
def test_edited_away_with_the_turn_it_joined(world: World, edited: str) -> None:
    chat, opened, own = joined(world)
    effects = world.do(machine.edit, chat.id, message_id(world, edited), words("new"))
    assert ends(effects) == dict.fromkeys((opened, own), (TurnState.CANCELLED, None))
    kept = LOOKED if edited == "and this" else []
    assert history(world, chat.id) == [*kept, "user: new"]


def test_one_that_was_answered_can_be_edited_later(world: World) -> None:
    chat, _, own = joined(world)
    world.do(machine.finish_turn, chat.held, message=said("Done."))
    edited = world.do(machine.edit, chat.id, message_id(world, "and this"), words("new"))
    assert edited.ended == ()
    assert history(world, chat.id) == [*LOOKED, "user: new"]
    assert turn(world, own)["state"] == "finished"


def test_whoever_stops_its_turn_stops_the_one_it_joined(world: World) -> None:
    chat, _, own = joined(world)
    assert world.do(machine.interrupt, chat.id, turn_id=own).status is Status.INTERRUPTING
    world.do(machine.finish_interrupt, chat.held)
    steer(world, chat, "later")
    late = world.do(machine.interrupt, chat.id, turn_id=own)
    assert not late.changed, "that turn is over"


def test_a_revoked_turn_is_found_though_it_joined_another(world: World) -> None:
    chat, _, own = joined(world)
    assert claims.by_turn(world.engine, [own]) == [(chat.id, own, None)]


def test_a_result_that_was_never_stored_is_announced_by_the_sweep(world: World) -> None:
    chat, opened, own = joined(world)
    world.do(machine.finish_turn, chat.held, message=said("Done."))
    sql(world, "UPDATE rejoinder.turns SET ended_at = ended_at - interval '1 hour'")
    with transaction(world.engine) as tx:
        found = {end.turn_id: end.answer for _, end in claims.unannounced(tx)}
    assert found == {opened: "Done.", own: "Done."}


def test_after_a_crash_it_joins_the_turn_that_goes_on(world: World) -> None:
    chat = world.running()
    steer(world, chat, "and this")
    world.do(machine.recover, chat.id, chat.held.lease_id)
    assert history(world, chat.id) == ["user: hello", "user: and this"]
