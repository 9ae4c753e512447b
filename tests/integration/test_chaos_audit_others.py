"""The auditor of `make chaos` can fail, part three: other apps' tasks, chats below, summaries."""

import json
import time
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine

from models import machine
from models.machine import NewChat
from rejoinder.core.messages import (
    CallKind,
    CallPlan,
    Compaction,
    Delivery,
    NewMessage,
    Role,
    Usage,
    Visibility,
)
from rejoinder.core.parts import ToolCall, ToolResult
from scripts.chaos_parts import trail
from scripts.chaos_parts.audit_calls import UNSURE
from scripts.chaos_parts.journal import Compacted, Outage, Outcome, Stop
from scripts.chaos_parts.model_server import PLENTY
from scripts.chaos_parts.plan import SPAWN, WAIT, Call, Plan
from tests.chats import World, said, words
from tests.integration.chaos_books import Books, call_of, plan

TASK, LOST = plan("c0-t1", ("task_once",)), plan("c1-t1", ("task_once",))
CHILD = plan("c2-t1.0", ("quick",))
PARENT = Plan("c2-t1", ((Call(SPAWN, child=CHILD),), (Call(WAIT, 60.0),)))
LONG = plan("c3-t1", ("quick",))


@pytest.fixture
def books(engine: Engine) -> Books:
    """Begin with nothing."""
    trail.install(engine)
    return Books(World(engine))


@pytest.fixture
def tasks(books: Books) -> Books:
    """One task that was done, and one that was lost with its worker."""
    for asked in (TASK, LOST):
        chat_id = books.create(asked)
        books.order(chat_id, asked)
        if asked is TASK:
            books.deliver(chat_id, asked)
        else:
            books.note_task("begin", asked)
            books.expire(chat_id)
        books.answer(chat_id, asked, done_steps=1)
    assert books.findings() == []
    return books


def test_a_task_that_was_done_twice(tasks: Books) -> None:
    tasks.note_task("begin", TASK)
    assert set(tasks.findings()) == {"tool run twice"}


def test_a_task_that_nobody_sent(tasks: Books) -> None:
    line = {**tasks.ledger[0], "task_id": "another", "nonce": "another"}
    tasks.ledger.append(line)
    assert tasks.findings() == ["tool run unasked"]


def test_a_result_of_a_task_that_was_not_done(tasks: Books) -> None:
    tasks.ledger = [line for line in tasks.ledger if line["what"] != "end"]
    assert tasks.findings() == ["result out of thin air"]


def test_a_lost_task_that_was_given_up_too_early(tasks: Books) -> None:
    tasks.sql("UPDATE rejoinder.tool_calls SET created_at = ended_at")
    assert tasks.findings() == ["timeout too early"]


def test_a_task_that_is_said_to_have_failed(tasks: Books) -> None:
    failed = "The task failed with ConnectionError: refused."
    tasks.sql(
        "UPDATE rejoinder.tool_calls SET result = CAST(:result AS json) WHERE call_id = :id",
        id=call_of(TASK),
        result=json.dumps({"is_error": True, "content": failed}),
    )
    now = time.time()
    tasks.journal.outages.append(Outage("valkey", now - 3600, now))
    assert tasks.findings() == ["call failed"]
    tasks.sql(
        "UPDATE rejoinder.tool_calls SET result = CAST(:result AS json) WHERE call_id = :id",
        id=call_of(TASK),
        result=json.dumps({"is_error": True, "content": f"{failed} But {UNSURE}."}),
    )
    assert tasks.findings() == []
    tasks.journal.outages.clear()
    assert tasks.findings() == ["call failed"]


@pytest.fixture
def family(books: Books) -> Books:
    """A chat that had another one work for it, and got its report."""
    parent, child = spawned(books)
    books.answer(child, CHILD)
    waited(books, parent, child, {"status": "waiting", "report": CHILD.answer})
    books.answer(parent, PARENT, done_steps=2)
    assert books.findings() == []
    return books


def spawned(books: Books) -> tuple[UUID, UUID]:
    """What a spawn does: the call, the child, and the call's result."""
    parent = books.create(PARENT)
    call = ToolCall(call_of(PARENT), SPAWN, PARENT.arguments(0, 0))
    plans = {call.call_id: CallPlan(delivery=Delivery.IDEMPOTENT)}
    fence = books.world.claim(parent)
    recorded = books.world.do(
        machine.record, fence, said("Step.", call), plans=plans, start=[call.call_id]
    )
    child = books.world.do(machine.create, NewChat("chaos", words(CHILD.text), parent_id=parent))
    told = json.dumps({"chat_id": str(child.chat_id), "status": "pending"})
    result = ToolResult(call.call_id, told)
    books.world.do(machine.commit, recorded.fence, results=[result])
    return parent, child.chat_id


def waited(books: Books, parent: UUID, child: UUID, report: dict[str, Any]) -> None:
    """What a wait does: the call, and what became of the child."""
    call = ToolCall(call_of(PARENT, 1), WAIT, PARENT.arguments(1, 0, [str(child)]))
    plans = {call.call_id: CallPlan(CallKind.CHILDREN, seconds=60, waits_for=(child,))}
    fence = books.world.claim(parent)
    recorded = books.world.do(machine.record, fence, said("Step.", call), plans=plans)
    told = {"agents": [{"chat_id": str(child), **report}], "timed_out": False}
    result = ToolResult(call.call_id, json.dumps(told))
    books.world.do(machine.sleep, recorded.fence, deadline_seconds=60, results=[result])


def child_of(books: Books) -> str:
    (row,) = books.world.read("SELECT id FROM rejoinder.chats WHERE parent_id IS NOT NULL")
    return str(row["id"])


def test_a_child_that_nobody_asked_for(family: Books) -> None:
    parent = family.journal.asked[0].chat_id
    other = plan("c9-t9")
    made = family.world.do(
        machine.create, NewChat("chaos", words(other.text), parent_id=UUID(parent))
    )
    family.answer(made.chat_id, other)
    assert set(family.findings()) == {"child that nobody asked for", "message that nobody sent"}


def test_a_child_that_was_made_twice(family: Books) -> None:
    parent = family.journal.asked[0].chat_id
    made = family.world.do(
        machine.create, NewChat("chaos", words(CHILD.text), parent_id=UUID(parent))
    )
    family.answer(made.chat_id, replace(CHILD, steps=()))
    assert "child made twice" in family.findings()


def test_a_child_that_was_lost(family: Books) -> None:
    family.sql(
        "UPDATE rejoinder.tool_calls SET result ="
        " replace(result::text, :id, gen_random_uuid()::text)::json WHERE name = 'spawn_agent'",
        id=child_of(family),
    )
    assert family.findings() == ["child lost"]


def test_a_child_that_somebody_else_spoke_to(family: Books) -> None:
    child = UUID(child_of(family))
    family.send(child, plan("c9-t9"))
    family.answer(child, plan("c9-t9"))
    assert family.findings() == ["child told twice"]


def test_a_wrong_answer_of_a_child(family: Books) -> None:
    family.sql(
        "UPDATE rejoinder.messages SET parts = replace(parts::text, 'answer to', 'lie to')::json"
        " WHERE chat_id = :id AND role = 'assistant'",
        id=child_of(family),
    )
    assert set(family.findings()) == {"wrong answer", "wrong report"}


def test_a_report_that_is_not_the_childs(family: Books) -> None:
    family.sql(
        "UPDATE rejoinder.tool_calls SET result = replace(result::text, 'word', 'lie')::json"
        " WHERE name = 'wait_agent'"
    )
    assert family.findings() == ["wrong report"]


def test_a_report_of_another(family: Books) -> None:
    family.sql("UPDATE rejoinder.tool_calls SET waits_for = '{}' WHERE name = 'wait_agent'")
    assert family.findings() == ["reports do not fit"]


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ({"status": "running", "timed_out": True}, ["wrong report"]),  # too early
        ({"status": "waiting", "report": "answer to"}, ["wrong report"]),  # it had not ended
    ],
)
def test_a_report_before_its_time(books: Books, told: dict[str, Any], found: list[str]) -> None:
    parent, child = spawned(books)
    waited(books, parent, child, told)
    books.answer(parent, PARENT, done_steps=2)
    books.answer(child, CHILD)
    assert books.findings() == found


def test_a_child_that_was_stopped_is_reported_as_that(books: Books) -> None:
    parent, child = spawned(books)
    books.tell(books.world.do(machine.interrupt, child))
    waited(books, parent, child, {"status": "waiting", "interrupted": True, "report": None})
    books.answer(parent, PARENT, done_steps=2)
    assert books.findings() == ["turn interrupted by nobody"]
    books.journal.stop(Stop(str(child), None, time.time() - 60, "fault"))
    assert books.findings() == []
    books.sql(
        "UPDATE rejoinder.tool_calls SET result = replace(result::text, 'true', 'false')::json"
        " WHERE name = 'wait_agent'"
    )
    assert books.findings() == ["wrong report"]


def test_a_stop_above_explains_what_is_below(books: Books) -> None:
    parent, _ = spawned(books)
    books.journal.stop(Stop(str(parent), None, time.time() - 60, "driver"))
    for effects in both_stopped(books, parent):
        books.tell(effects)
    assert books.findings() == []


def both_stopped(books: Books, parent: UUID) -> Any:
    return books.world.do(machine.interrupt_tree, parent)


def test_a_child_that_goes_on_when_those_above_are_stopped(books: Books) -> None:
    parent, child = spawned(books)
    books.journal.stop(Stop(str(parent), None, time.time() - 60, "driver"))
    books.tell(books.world.do(machine.interrupt, parent))
    books.answer(child, CHILD)
    books.sql("UPDATE chaos.trail SET at = at + interval '5 s' WHERE chat_id = :id", id=child)
    books.sql(
        "UPDATE rejoinder.turns SET ended_at = ended_at + interval '10 s' WHERE chat_id = :id",
        id=child,
    )
    assert books.findings() == ["child went on"]


@pytest.fixture
def summed_up(books: Books) -> Books:
    """One chat that was summarised in the middle of a turn, and again at rest."""
    chat_id = books.create(LONG)
    fence = books.world.claim(chat_id)
    call = ToolCall(call_of(LONG), "quick", LONG.arguments(0, 0))
    full = replace(said("Step.", call), usage=Usage(input_tokens=PLENTY))
    plans = {call.call_id: CallPlan(delivery=Delivery.IDEMPOTENT)}
    recorded = books.world.do(machine.record, fence, full, plans=plans, start=[call.call_id])
    books.world.do(machine.commit, recorded.fence, results=[books.work(chat_id, call)])
    summarise(books, chat_id)
    books.answer(chat_id, LONG, done_steps=1)
    asked = books.world.do(machine.request_compaction, chat_id)
    request = Compacted(str(chat_id), str(asked.turn_id), time.time(), Outcome.ACCEPTED)
    books.journal.compaction(request)
    summarise(books, chat_id)
    assert books.findings() == []
    return books


def summarise(books: Books, chat_id: UUID) -> None:
    summary = NewMessage(Role.USER, words(LONG.text), Visibility.MODEL, compressed=True)
    marker = NewMessage(Role.ASSISTANT, words("Summarised."), Visibility.USER, compressed=True)
    fence = books.world.claim(chat_id)
    books.tell(books.world.do(machine.store_compaction, fence, Compaction(summary, marker)))


@pytest.mark.parametrize("half", ["max", "min"])
def test_half_a_boundary(summed_up: Books, half: str) -> None:
    summed_up.sql(
        f"DELETE FROM rejoinder.messages WHERE id ="  # noqa: S608
        f" (SELECT {half}(id) FROM rejoinder.messages WHERE compressed)"
    )
    assert "boundary torn" in summed_up.findings()


def test_a_summary_that_everybody_sees(summed_up: Books) -> None:
    summed_up.sql("UPDATE rejoinder.messages SET visibility = 'both' WHERE compressed")
    assert "boundary torn" in summed_up.findings()


def test_a_summary_for_nothing(summed_up: Books) -> None:
    summed_up.sql("UPDATE rejoinder.messages SET input_tokens = 20")
    assert summed_up.findings() == ["summary for nothing"]


def test_an_edit_takes_a_summary_away_and_the_next_one_is_not_for_nothing(books: Books) -> None:
    long, second, third = plan("c4-t1"), plan("c4-t2"), plan("c4-t3")
    chat_id = books.create(long)
    full = replace(said(long.answer), usage=Usage(input_tokens=PLENTY))
    books.tell(books.world.do(machine.finish_turn, books.world.claim(chat_id), message=full))
    (message_id,) = books.send(chat_id, second).message_ids
    summarise(books, chat_id)
    edited = books.world.do(machine.edit, chat_id, message_id, words(third.text))
    books.tell(edited)
    books.asked(third, edited, "edit", edits=message_id)
    books.journal.asked[-1] = replace(books.journal.asked[-1], asked_at=0.0)
    summarise(books, chat_id)
    books.answer(chat_id, third)
    assert books.findings() == []
    books.journal.asked[-1] = replace(books.journal.asked[-1], edits=10**9)
    assert "summary for nothing" in books.findings()


def test_a_request_that_was_carried_out_twice(summed_up: Books) -> None:
    summed_up.sql(
        "INSERT INTO rejoinder.messages"
        " (chat_id, turn_id, role, visibility, compressed, revision, parts)"
        " SELECT chat_id, turn_id, role, visibility, compressed, revision, parts"
        " FROM rejoinder.messages WHERE compressed ORDER BY id DESC LIMIT 2"
    )
    assert "summarised twice or never" in summed_up.findings()


def test_a_request_that_left_nothing(summed_up: Books) -> None:
    summed_up.sql(
        "DELETE FROM rejoinder.messages WHERE compressed AND turn_id IN"
        " (SELECT id FROM rejoinder.turns WHERE kind = 'compaction')"
    )
    assert summed_up.findings() == ["summarised twice or never"]


def test_a_summary_that_nobody_asked_for(summed_up: Books) -> None:
    (asked,) = summed_up.journal.compactions
    summed_up.journal.compactions[:] = [replace(asked, turn_id=None, outcome=Outcome.UNKNOWN)]
    assert summed_up.findings() == []
    summed_up.journal.compactions.clear()
    assert summed_up.findings() == ["summary that nobody asked for"]


def test_a_request_that_was_lost(summed_up: Books) -> None:
    (asked,) = summed_up.journal.compactions
    summed_up.journal.compaction(replace(asked, turn_id="another"))
    assert summed_up.findings() == ["turn lost"]


def test_a_model_that_is_asked_before_there_is_room(summed_up: Books) -> None:
    summed_up.sql(
        "DELETE FROM rejoinder.messages WHERE compressed AND turn_id NOT IN"
        " (SELECT id FROM rejoinder.turns WHERE kind = 'compaction')"
    )
    assert summed_up.findings() == ["no summary in time"]


def test_an_answer_that_is_given_again_behind_a_summary(summed_up: Books) -> None:
    summed_up.sql(
        "INSERT INTO rejoinder.messages (chat_id, turn_id, role, visibility, revision, parts)"
        " SELECT chat_id, turn_id, role, visibility, revision, parts FROM rejoinder.messages"
        " WHERE role = 'assistant' AND NOT compressed AND parts::text LIKE '%answer to%'"
    )
    assert "answered twice" in summed_up.findings()
