"""Turns, fences, retries, crashes and compaction: what a worker may write, and what it counts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from uuid_utils.compat import uuid7

from models import claims, machine
from models.engine import transaction
from models.history import prompt_history
from models.machine import keys
from rejoinder.core import parts
from rejoinder.core.errors import Rejected, Stale, StopRequested
from rejoinder.core.limits import MAX_CRASHES
from rejoinder.core.state import Status
from tests.chats import BOOM, DEAD_AFTER, World, call, said, words
from tests.integration.matrix.stage import SUMMARY
from tests.integration.reading import history, message_id, queue, sql, turn

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from sqlalchemy import Engine

    from rejoinder.core.effects import Effects, Fence

WRITES: dict[str, Callable[[World, Fence], Effects]] = {
    "record": lambda w, f: w.do(machine.record, f, said("late")),
    "start_tools": lambda w, f: w.do(machine.start_tools, f, []),
    "commit": lambda w, f: w.do(machine.commit, f, message=said("late")),
    "store_compaction": lambda w, f: w.do(machine.store_compaction, f, SUMMARY),
    "finish_turn": lambda w, f: w.do(machine.finish_turn, f, message=said("late")),
    "retry_later": lambda w, f: w.do(
        machine.retry_later, f, delay_seconds=1, retry_state={"kind": "late"}
    ),
    "require_action": lambda w, f: w.do(machine.require_action, f, deadline_seconds=1),
    "sleep": lambda w, f: w.do(machine.sleep, f, deadline_seconds=1),
    "fail": lambda w, f: w.do(machine.fail, f, BOOM),
    "release": lambda w, f: w.do(machine.release, f, partial=said("late")),
    "finish_interrupt": lambda w, f: w.do(machine.finish_interrupt, f, partial=said("late")),
}


@pytest.fixture
def world(engine: Engine) -> World:
    return World(engine)


@pytest.mark.parametrize("write", WRITES)
def test_a_worker_whose_lease_was_taken_writes_nothing(world: World, write: str) -> None:
    subject = world.running()
    world.do(machine.recover, subject.id, subject.held.lease_id)
    world.claim(subject.id)
    before = world.dump()
    with pytest.raises(Stale, match="leave, and write nothing"):
        WRITES[write](world, subject.held)
    assert world.dump() == before


@pytest.mark.parametrize("write", WRITES)
def test_a_worker_whose_view_of_history_is_old_writes_nothing(world: World, write: str) -> None:
    subject = world.running()
    world.do(machine.record, subject.held, said("newer"))
    before = world.dump()
    with pytest.raises(Stale):
        WRITES[write](world, subject.held)
    assert world.dump() == before


@pytest.mark.parametrize("write", sorted(set(WRITES) - {"release", "finish_interrupt"}))
def test_a_worker_that_is_to_stop_is_told_so(world: World, write: str) -> None:
    subject = world.chat(Status.INTERRUPTING)
    before = world.dump()
    with pytest.raises(StopRequested, match="finish_interrupt"):
        WRITES[write](world, subject.held)
    assert world.dump() == before


def test_an_edit_takes_the_chat_from_its_owner(world: World) -> None:
    subject = world.running()
    world.do(machine.edit, subject.id, message_id(world, "hello"), words("other"))
    with pytest.raises(Stale):
        world.do(machine.commit, subject.held)
    assert world.claim(subject.id).lease_id != subject.held.lease_id


def test_a_queued_message_does_not_disturb_the_owner(world: World) -> None:
    subject = world.running()
    effects = world.do(machine.send, subject.id, words("later"))
    assert effects.fence == subject.held
    assert world.do(machine.commit, subject.held).status is Status.PENDING


def test_unknown_chats_are_refused(world: World) -> None:
    nobody = uuid7()
    with pytest.raises(Rejected, match="check its id"):
        world.do(machine.send, nobody, words("hello?"))
    with pytest.raises(Rejected, match="check its id"):
        world.transact(lambda tx: keys.owner_of(tx, nobody))
    with pytest.raises(Stale):
        world.do(machine.recover, nobody, uuid7())
    assert claims.claim(world.engine, nobody, world.worker_id, dead_after=DEAD_AFTER) is None


def test_a_chat_that_keeps_killing_its_workers_is_given_up(world: World) -> None:
    subject = world.new()
    turn_id = world.row(subject.id)["turn_id"]
    for crash in range(1, MAX_CRASHES):
        effects = world.do(machine.recover, subject.id, world.claim(subject.id).lease_id)
        assert (effects.status, world.row(subject.id)["crashes"]) == (Status.PENDING, crash)
        assert effects.dispatch is not None
    effects = world.do(machine.recover, subject.id, world.claim(subject.id).lease_id)
    assert MAX_CRASHES == 3
    assert effects.status is Status.ERROR
    row = world.row(subject.id)
    assert (row["last_error"]["kind"], row["crashes"]) == ("worker_lost", MAX_CRASHES)
    (ended,) = effects.ended
    assert (ended.turn_id, ended.state, ended.error) == (turn_id, "failed", row["last_error"])
    world.do(machine.retry, subject.id)
    assert world.row(subject.id)["crashes"] == 0, "a person asked for it: counted anew"


@pytest.mark.parametrize("step", ["commit", "store_compaction"])
def test_a_step_that_succeeds_clears_the_crash_count(world: World, step: str) -> None:
    subject = world.new()
    for _ in range(MAX_CRASHES - 1):
        world.do(machine.recover, subject.id, world.claim(subject.id).lease_id)
    WRITES[step](world, world.claim(subject.id))
    assert world.row(subject.id)["crashes"] == 0
    effects = world.do(machine.recover, subject.id, world.claim(subject.id).lease_id)
    assert effects.status is Status.PENDING


def test_recovery_of_another_lease_changes_nothing(world: World) -> None:
    subject = world.running()
    before = world.dump()
    with pytest.raises(Stale, match="another owner"):
        world.do(machine.recover, subject.id, uuid7())
    assert world.dump() == before


def test_a_shutdown_counts_nothing(world: World) -> None:
    subject = world.new()
    world.do(machine.recover, subject.id, world.claim(subject.id).lease_id)
    fence = world.claim(subject.id)
    world.do(machine.retry_later, fence, delay_seconds=0, retry_state={"kind": "timeout"})
    before = world.row(subject.id)
    for _ in range(5):
        effects = world.do(machine.release, world.claim(subject.id))
        assert (effects.status, effects.ended) == (Status.PENDING, ())
    after = world.row(subject.id)
    for column in ("attempt", "crashes", "retry_state", "turn_id", "history_version"):
        assert after[column] == before[column]


def test_attempts_count_up_until_history_moves(world: World) -> None:
    subject = world.new()
    for attempt in (1, 2, 3):
        state = {"kind": "overloaded", "wait": attempt}
        fence = world.claim(subject.id)
        effects = world.do(machine.retry_later, fence, delay_seconds=0, retry_state=state)
        row = world.row(subject.id)
        assert (row["attempt"], row["retry_state"]) == (attempt, state)
        assert effects.ended == ()
    got = claims.claim(world.engine, subject.id, world.worker_id, dead_after=DEAD_AFTER)
    assert got is not None
    assert got.attempt == 3
    world.do(machine.record, got.fence, said("At last."))
    row = world.row(subject.id)
    assert (row["attempt"], row["retry_state"]) == (0, None)


def test_a_chat_is_not_claimed_before_its_time(world: World) -> None:
    subject = world.running()
    effects = world.do(
        machine.retry_later, subject.held, delay_seconds=60, retry_state={"kind": "rate"}
    )
    assert effects.dispatch is not None
    assert effects.dispatch.delay_seconds == 60
    assert claims.claim(world.engine, subject.id, world.worker_id, dead_after=DEAD_AFTER) is None
    sql(world, "UPDATE rejoinder.chats SET run_after = clock_timestamp()")
    world.claim(subject.id)


def test_a_wait_is_over_when_somebody_stops_the_chat(world: World) -> None:
    subject = world.running()
    world.do(machine.retry_later, subject.held, delay_seconds=60, retry_state={"kind": "rate"})
    assert world.do(machine.interrupt, subject.id).status is Status.WAITING
    effects = world.do(machine.send, subject.id, words("again"))
    assert effects.dispatch is not None
    assert effects.dispatch.delay_seconds == 0
    row = world.row(subject.id)
    assert (row["run_after"], row["attempt"], row["retry_state"]) == (None, 0, None)


def test_a_compaction_in_a_turn_lets_the_turn_go_on(world: World) -> None:
    subject = world.running()
    turn_id = world.row(subject.id)["turn_id"]
    effects = world.do(machine.store_compaction, subject.held, SUMMARY)
    assert (effects.status, effects.turn_id, effects.ended) == (Status.PENDING, turn_id, ())
    assert turn(world, turn_id)["steps"] == 0, "a compaction is no step of the answer"
    kinds = [event.kind for event in effects.events]
    assert kinds == ["message", "message", "compaction", "status"], "told before the next step is"


@pytest.mark.parametrize("queued", [0, 2])
def test_a_turn_that_only_compacts_is_over_with_it(world: World, queued: int) -> None:
    subject = world.chat(Status.WAITING)
    asked = world.do(machine.request_compaction, subject.id)
    assert turn(world, asked.turn_id)["kind"] == "compaction"
    fence = world.claim(subject.id)
    for number in range(queued):
        world.do(machine.send, subject.id, words(f"queued {number}"))
    effects = world.do(machine.store_compaction, fence, SUMMARY)
    (ended,) = effects.ended
    assert (ended.turn_id, ended.state, ended.answer_id) == (asked.turn_id, "finished", None)
    assert effects.status is (Status.PENDING if queued else Status.WAITING)
    assert queue(world, subject.id) == (["queued 1"] if queued else [])
    assert prompt(world, subject.id) == (["summary", "queued 0"] if queued else ["summary"])


def test_the_prompt_starts_at_the_newest_boundary_and_keeps_the_system_messages(
    world: World,
) -> None:
    new = machine.NewChat("owner", words("first"), system=words("Be brief."))
    chat_id = world.do(machine.create, new).chat_id
    assert prompt(world, chat_id) == ["Be brief.", "first"]
    for number in (1, 2):
        newest = replace(SUMMARY.summary, parts=words(f"summary {number}"))
        compaction = replace(SUMMARY, summary=newest)
        world.do(machine.store_compaction, world.claim(chat_id), compaction)
        world.do(machine.finish_turn, world.claim(chat_id), message=said(f"answer {number}"))
        world.do(machine.send, chat_id, words(f"more {number}"))
    assert prompt(world, chat_id) == ["Be brief.", "summary 2", "answer 2", "more 2"]
    assert "assistant: compacted" in history(world, chat_id), "the marker is for people"


def test_history_is_not_compacted_while_calls_are_open(world: World) -> None:
    subject = world.asking(call())
    before = world.dump()
    with pytest.raises(Rejected, match="answer them"):
        world.do(machine.store_compaction, subject.held, SUMMARY)
    assert world.dump() == before


def test_a_turn_without_a_new_message_ends_with_the_last_one_it_had(world: World) -> None:
    subject = world.running()
    effects = world.do(machine.record, subject.held, said("That is all."))
    effects = world.do(machine.finish_turn, effects.fence)
    (ended,) = effects.ended
    assert (ended.state, ended.answer) == ("finished", "That is all.")
    assert ended.answer_id == message_id(world, "That is all.")


def test_a_turn_that_was_stopped_at_once_has_no_answer(world: World) -> None:
    subject = world.chat(Status.WAITING)
    world.do(machine.send, subject.id, words("never mind"))
    (ended,) = world.do(machine.interrupt, subject.id).ended
    assert (ended.state, ended.answer_id, ended.answer) == ("interrupted", None, None)


def prompt(world: World, chat_id: UUID) -> list[str]:
    with transaction(world.engine) as tx:
        return [parts.text_of(parts.load(row.parts)) for row in prompt_history(tx, chat_id)]


def test_a_step_whose_worker_died_is_noted(world: World) -> None:
    subject = world.running()
    world.do(machine.recover, subject.id, subject.held.lease_id)
    (step,) = world.read("SELECT * FROM rejoinder.steps WHERE chat_id = :c", c=subject.id)
    assert (step["outcome"], step["worker"], step["model_ms"]) == ("recover", "worker", None)
    assert step["began_at"] < step["ended_at"]
    assert step["task_id"] is not None
