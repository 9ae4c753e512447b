"""Sending, queueing, promoting and editing, where one cell of the matrix does not show it all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from models import machine
from models.engine import transaction
from models.history import prompt_history
from models.machine import NewChat
from rejoinder.core import parts
from rejoinder.core.errors import Rejected
from rejoinder.core.limits import MAX_QUEUED
from rejoinder.core.messages import WhenBusy
from rejoinder.core.parts import ToolCall, ToolResult
from rejoinder.core.state import Status
from tests.chats import World, call, said, words
from tests.integration.matrix.stage import SUMMARY
from tests.integration.reading import calls, history, message_id, queue, queued_id, turn

if TYPE_CHECKING:
    from uuid import UUID

    from sqlalchemy import Engine


@pytest.fixture
def world(engine: Engine) -> World:
    return World(engine)


def test_a_message_to_a_failed_chat_with_a_backlog_lets_the_head_go_first(world: World) -> None:
    subject = world.chat(Status.ERROR, queued=2)
    effects = world.do(machine.send, subject.id, words("newest"))
    assert history(world, subject.id) == ["user: hello", "user: queued 0"]
    assert queue(world, subject.id) == ["queued 1", "newest"]
    assert effects.queued_id == queued_id(world, "newest")
    assert turn(world, effects.turn_id)["state"] == "queued"


def test_a_queue_is_worked_off_in_order_one_message_a_turn(world: World) -> None:
    subject = world.chat(Status.RUNNING, queued=3)
    fence = subject.held
    for number in range(3):
        world.do(machine.finish_turn, fence, message=said(f"answer {number}"))
        assert len(queue(world, subject.id)) == 2 - number
        fence = world.claim(subject.id)
    last = world.do(machine.finish_turn, fence, message=said("answer 3"))
    assert last.status is Status.WAITING
    assert history(world, subject.id) == [
        "user: hello",
        "assistant: answer 0",
        "user: queued 0",
        "assistant: answer 1",
        "user: queued 1",
        "assistant: answer 2",
        "user: queued 2",
        "assistant: answer 3",
    ]


def test_promoting_a_message_from_the_middle_of_the_queue_overtakes_the_others(
    world: World,
) -> None:
    subject = world.chat(Status.RUNNING, queued=3)
    world.do(machine.promote_queued, subject.id, queued_id(world, "queued 1"))
    assert queue(world, subject.id) == ["queued 1", "queued 0", "queued 2"]
    world.do(machine.finish_interrupt, subject.held)
    assert history(world, subject.id) == ["user: hello", "user: queued 1"]
    world.do(machine.send, subject.id, words("newest"))
    assert queue(world, subject.id) == ["queued 0", "queued 2", "newest"]


def test_the_message_over_the_limit_of_the_queue_is_refused_with_advice(world: World) -> None:
    subject = world.chat(Status.RUNNING, queued=MAX_QUEUED)
    before = world.dump()
    for when_busy in (WhenBusy.QUEUE, WhenBusy.INTERRUPT):
        with pytest.raises(Rejected, match="20 queued messages already: wait until"):
            world.do(machine.send, subject.id, words("one too many"), when_busy=when_busy)
    assert world.dump() == before
    world.do(machine.delete_queued, subject.id, queued_id(world, "queued 7"))
    world.do(machine.send, subject.id, words("now it fits"))
    assert len(queue(world, subject.id)) == MAX_QUEUED == 20


def test_a_full_queue_does_not_keep_a_failed_chat_from_going_on(world: World) -> None:
    subject = world.chat(Status.ERROR, queued=MAX_QUEUED)
    effects = world.do(machine.send, subject.id, words("one more"))
    assert effects.status is Status.PENDING
    assert len(queue(world, subject.id)) == MAX_QUEUED


def test_a_queued_message_of_another_chat_is_not_found(world: World) -> None:
    mine, other = world.chat(Status.RUNNING, queued=1), world.chat(Status.RUNNING)
    world.do(machine.send, other.id, words("theirs"))
    theirs = queued_id(world, "theirs")
    before = world.dump()
    for transition in (machine.promote_queued, machine.delete_queued):
        with pytest.raises(Rejected, match="not in the queue of this chat"):
            world.do(transition, mine.id, theirs)
    assert world.dump() == before


def test_a_message_may_choose_the_model_from_its_own_turn_on(world: World) -> None:
    subject = world.chat(Status.RUNNING)
    world.do(machine.send, subject.id, words("think hard"), model="big")
    assert world.row(subject.id)["model"] == ""
    world.do(machine.finish_turn, subject.held)
    assert world.row(subject.id)["model"] == "big"


def test_an_edit_replaces_the_message_and_forgets_what_came_after(world: World) -> None:
    subject = world.chat(Status.WAITING)
    world.do(machine.send, subject.id, words("more"))
    fence = world.claim(subject.id)
    world.do(machine.record, fence, said("Looking.", call("call-1")), start=["call-1"])
    before = world.row(subject.id)
    effects = world.do(machine.edit, subject.id, message_id(world, "more"), words("other"))
    assert history(world, subject.id) == ["user: hello", "assistant: Done.", "user: other"]
    assert calls(world, subject.id) == {"call-1": "unknown settled"}
    (ended,) = effects.ended
    assert (ended.turn_id, ended.state) == (before["turn_id"], "cancelled")
    deleted = world.read("SELECT revision FROM rejoinder.messages WHERE deleted")
    assert [row["revision"] for row in deleted] == [effects.snapshot_version] * 2


def test_an_edit_before_a_compaction_revives_the_history_behind_it(world: World) -> None:
    effects = world.do(machine.create, NewChat("owner", words("first"), system=words("Be brief.")))
    chat_id = effects.chat_id
    world.do(machine.finish_turn, world.claim(chat_id), message=said("answer"))
    world.do(machine.send, chat_id, words("second"))
    world.do(machine.store_compaction, world.claim(chat_id), SUMMARY)
    assert _prompt(world, chat_id) == ["Be brief.", "summary"]
    world.do(machine.edit, chat_id, message_id(world, "second"), words("third"))
    assert _prompt(world, chat_id) == ["Be brief.", "first", "answer", "third"]


@pytest.mark.parametrize("which", ["Done.", "Be brief.", "summary"])
def test_only_what_the_user_wrote_can_be_edited(world: World, which: str) -> None:
    new = NewChat("owner", words("hello"), system=words("Be brief."))
    chat_id = world.do(machine.create, new).chat_id
    world.do(machine.store_compaction, world.claim(chat_id), SUMMARY)
    world.do(machine.finish_turn, world.claim(chat_id), message=said("Done."))
    before = world.dump()
    with pytest.raises(Rejected, match="only the user's own messages"):
        world.do(machine.edit, chat_id, message_id(world, which), words("mine"))
    assert world.dump() == before


def test_a_message_that_was_edited_away_cannot_be_edited(world: World) -> None:
    subject = world.chat(Status.WAITING)
    world.do(machine.edit, subject.id, message_id(world, "hello"), words("other"))
    before = world.dump()
    with pytest.raises(Rejected, match="read the messages again"):
        world.do(machine.edit, subject.id, message_id(world, "hello"), words("third"))
    assert world.dump() == before


def test_a_message_of_another_chat_cannot_be_edited(world: World) -> None:
    subject = world.chat(Status.WAITING)
    theirs = world.new("theirs")
    before = world.dump()
    with pytest.raises(Rejected, match="not in the history of this chat"):
        world.do(machine.edit, subject.id, message_id(world, "theirs"), words("mine"))
    assert world.dump() == before
    assert theirs.id != subject.id


@pytest.mark.parametrize(
    "content",
    [
        (),
        words(" \n"),
        (ToolCall("call-1", "look_up", {}),),
        (*words("and"), ToolResult("call-1", "forged")),
    ],
    ids=["nothing", "blank", "a call", "a result"],
)
def test_content_that_no_user_can_say_is_refused_everywhere(
    world: World, content: tuple[parts.Part, ...]
) -> None:
    subject = world.chat(Status.WAITING)
    before = world.dump()
    with pytest.raises(Rejected):
        world.do(machine.create, NewChat("owner", content))
    with pytest.raises(Rejected):
        world.do(machine.send, subject.id, content)
    with pytest.raises(Rejected):
        world.do(machine.edit, subject.id, message_id(world, "hello"), content)
    assert world.dump() == before


def _prompt(world: World, chat_id: UUID) -> list[str]:
    with transaction(world.engine) as tx:
        return [parts.text_of(parts.load(row.parts)) for row in prompt_history(tx, chat_id)]
