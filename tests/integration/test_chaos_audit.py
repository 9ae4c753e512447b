"""The auditor of `make chaos` can fail: each thing that must not happen is done to good books."""

import time
from dataclasses import replace
from uuid import UUID

import pytest
from sqlalchemy import Engine

from models import machine
from scripts.chaos_parts import trail
from scripts.chaos_parts.journal import Asked, Outcome, Stop
from scripts.chaos_parts.plan import Plan
from scripts.chaos_parts.schedule import Kind
from tests.chats import BOOM, World, said, words
from tests.integration.chaos_books import TOOLS, Books, plan

ONE, TWO = plan("c0-t1", TOOLS, ("ledger_once",)), plan("c0-t2", ("ledger_again",))
EDITED, STOPPED = plan("c1-t2"), plan("c2-t1", ("ledger_once",))


@pytest.fixture
def books(engine: Engine) -> Books:
    """Three chats: two turns with tools; an edit; an interrupt."""
    trail.install(engine)
    made = Books(World(engine))
    chat_id = made.create(ONE)
    made.send(chat_id, TWO)
    made.answer(chat_id, ONE)
    made.answer(chat_id, TWO)
    _edit(made)
    _interrupt(made)
    assert made.findings() == []
    return made


def _edit(books: Books) -> None:
    first = plan("c1-t1")
    chat_id = books.create(first)
    books.answer(chat_id, first)
    (row,) = books.world.read(
        "SELECT id FROM rejoinder.messages WHERE chat_id = :id AND role = 'user'", id=chat_id
    )
    effects = books.world.do(machine.edit, chat_id, row["id"], words(EDITED.text))
    books.asked(EDITED, effects, "edit", edits=row["id"])
    books.answer(chat_id, EDITED)


def _interrupt(books: Books) -> None:
    chat_id = books.create(STOPPED)
    fence = books.world.claim(chat_id)
    turn_id = str(books.journal.asked[-1].turn_id)
    books.journal.stop(Stop(str(chat_id), turn_id, time.time(), "driver"))
    books.world.do(machine.interrupt, chat_id)
    books.tell(books.world.do(machine.finish_interrupt, fence, partial=said("Step.")))


def chat_of(books: Books, asked: Plan) -> UUID:
    (found,) = [a.chat_id for a in books.journal.asked if a.plan.id == asked.id]
    return UUID(found)


def test_a_lost_message(books: Books) -> None:
    books.sql(
        "DELETE FROM rejoinder.messages WHERE role = 'user' AND parts::text LIKE :like",
        like=f"%{TWO.id}%",
    )
    assert "message lost" in books.findings()


def test_a_doubled_message(books: Books) -> None:
    _double(books, "role = 'user' AND NOT deleted")
    assert "message doubled" in books.findings()


def test_a_doubled_answer(books: Books) -> None:
    _double(books, "role = 'assistant' AND NOT deleted AND parts::text LIKE '%answer to%'")
    assert "answered twice" in books.findings()


def _double(books: Books, which: str) -> None:
    books.sql(
        "INSERT INTO rejoinder.messages (chat_id, turn_id, role, visibility, revision, parts)"  # noqa: S608
        " SELECT chat_id, turn_id, role, visibility, revision, parts"
        f" FROM rejoinder.messages WHERE {which} LIMIT 1"
    )


def test_a_wrong_answer(books: Books) -> None:
    books.sql(
        "UPDATE rejoinder.messages SET parts = replace(parts::text, 'answer to', 'lie to')::json"
    )
    assert "wrong answer" in books.findings()


def test_messages_in_the_wrong_order(books: Books) -> None:
    first, second = books.journal.asked[:2]
    books.journal.asked[:2] = [
        replace(first, answered_at=second.answered_at + 1),
        second,
    ]
    assert books.findings() == ["message out of order"]


def test_a_message_that_was_refused_or_never_sent(books: Books) -> None:
    books.journal.asked[1] = replace(books.journal.asked[1], outcome=Outcome.REFUSED)
    assert books.findings() == ["refused message stands"]
    del books.journal.asked[1]
    assert books.findings() == ["message that nobody sent"]


def test_a_message_without_an_answer_to_its_sender_may_stand_or_not(books: Books) -> None:
    books.journal.asked[1] = replace(books.journal.asked[1], outcome=Outcome.UNKNOWN, turn_id=None)
    assert books.findings() == []
    books.journal.message(
        Asked(plan("c0-t9"), "queue", Outcome.UNKNOWN, 0.0, 0.0, str(chat_of(books, ONE)))
    )
    assert books.findings() == []


def test_a_deleted_message_that_nobody_edited(books: Books) -> None:
    books.journal.asked = [
        replace(asked, edits=None, mode="queue") for asked in books.journal.asked
    ]
    assert "message deleted for nothing" in books.findings()


@pytest.mark.parametrize("name", ["call_id", "nonce"])
def test_a_tool_run_twice(books: Books, name: str) -> None:
    begun = next(line for line in books.ledger if line["tool"] == "ledger_once")
    other = {"nonce", "call_id"} - {name}
    known = next(line["call_id"] for line in books.ledger if line["tool"] == "ledger_again")
    books.ledger.append({**begun, "pid": 2, **dict.fromkeys(other, known)})
    assert set(books.findings()) == {"tool run twice"}


def test_a_tool_that_may_run_again_may(books: Books) -> None:
    begun = next(line for line in books.ledger if line["tool"] == "ledger_again")
    books.ledger.append({**begun, "pid": 2})
    assert books.findings() == []


def test_a_tool_run_that_history_does_not_know(books: Books) -> None:
    books.note("begin", "ledger_again", "c9-t9/0/0", "toolu_unknown", chat_of(books, ONE))
    assert books.findings() == ["tool run unasked"]


def test_a_result_out_of_thin_air(books: Books) -> None:
    ended = next(line for line in books.ledger if line["what"] == "end")
    books.ledger.remove(ended)
    assert books.findings() == ["result out of thin air"]


def test_a_wrong_result(books: Books) -> None:
    books.sql(
        "UPDATE rejoinder.tool_calls SET result = replace(result::text, 'done', 'gone')::json"
    )
    assert "wrong result" in books.findings()


def test_a_call_without_its_result(books: Books) -> None:
    books.sql("DELETE FROM rejoinder.messages WHERE role = 'tool'")
    assert "call without a result" in books.findings()


def test_a_user_between_a_call_and_its_result(books: Books) -> None:
    books.sql("UPDATE rejoinder.messages SET role = 'user' WHERE role = 'tool'")
    assert {"call without a result", "message that nobody sent"} <= set(books.findings())


def test_results_in_the_wrong_order(books: Books) -> None:
    books.sql(
        "UPDATE rejoinder.messages m SET parts = (SELECT json_agg(p.value ORDER BY p.n DESC)"
        " FROM json_array_elements(m.parts) WITH ORDINALITY AS p (value, n)) WHERE role = 'tool'"
    )
    assert books.findings() == ["results do not fit"]


def test_a_doubled_result(books: Books) -> None:
    _double(books, "role = 'tool'")
    assert {"result doubled", "result without a call"} <= set(books.findings())


def test_an_illegal_status_change(books: Books) -> None:
    _move(books, "waiting", "running")
    assert "illegal move" in books.findings()


def test_a_repair_is_no_excuse_for_an_illegal_change(books: Books) -> None:
    _move(books, "waiting", "error")
    assert "illegal move" in books.findings()


def test_a_version_that_went_back(books: Books) -> None:
    _move(books, "waiting", "pending", version=1)
    assert "version went back" in books.findings()


def test_a_move_that_the_trail_does_not_lead_to(books: Books) -> None:
    _move(books, "running", "pending")
    assert "move from elsewhere" in books.findings()


def _move(books: Books, old: str, new: str, version: int = 1000) -> None:
    books.sql(
        "INSERT INTO chaos.trail (chat_id, old_status, new_status, old_version, new_version)"
        " VALUES (:chat_id, :old, :new, :version - 1, :version)",
        chat_id=chat_of(books, ONE),
        old=old,
        new=new,
        version=version,
    )


def test_the_trail_sees_what_is_done_behind_the_machine(books: Books) -> None:
    books.sql(
        "UPDATE rejoinder.chats SET status = 'error', last_error = '{}' WHERE id = :chat_id",
        chat_id=chat_of(books, ONE),
    )
    assert {"illegal move", "version went back"} <= set(books.findings())


def test_a_budget_that_was_exceeded_by_more_than_a_call(books: Books) -> None:
    books.sql("UPDATE rejoinder.chats SET budget_tokens = 100, used_input = 150")
    books.sql("UPDATE rejoinder.messages SET input_tokens = 49 WHERE role = 'assistant'")
    assert set(books.findings()) == {"overspent"}
    books.sql("UPDATE rejoinder.messages SET output_tokens = 1 WHERE role = 'assistant'")
    assert books.findings() == []


def test_a_lease_that_changed_hands(books: Books) -> None:
    chat_id = books.create(plan("c3-t1"))
    books.world.claim(chat_id)
    anew = (
        "UPDATE rejoinder.chats SET lease_id = gen_random_uuid(), worker_id = :worker_id,"
        " snapshot_version = snapshot_version + 1 WHERE id = :chat_id"
    )
    books.sql(anew, chat_id=chat_id, worker_id=books.world.worker_id)
    assert "lease changed hands" not in books.findings(), "it was kept for the next step"
    books.sql(anew, chat_id=chat_id, worker_id=books.world.worker("another"))
    assert {"lease changed hands", "lease left", "stuck chat"} <= set(books.findings())


def test_a_stuck_chat(books: Books) -> None:
    books.create(plan("c3-t1"))
    assert books.findings() == ["stuck chat", "turn without an end"]


def test_a_turn_that_nobody_was_told_of(books: Books) -> None:
    books.sql("UPDATE rejoinder.turns SET announced = false WHERE state = 'interrupted'")
    assert books.findings() == ["unannounced turn"]


def test_a_turn_interrupted_by_nobody(books: Books) -> None:
    stop = books.journal.stops.pop()
    assert books.findings() == ["turn interrupted by nobody"]
    books.journal.stop(replace(stop, at=time.time() + 60))
    assert books.findings() == ["turn interrupted by nobody"]
    books.journal.stop(replace(stop, turn_id=None))
    assert books.findings() == []


def test_one_stop_does_not_explain_two_interrupted_turns(books: Books) -> None:
    books.journal.stops[0] = replace(books.journal.stops[0], turn_id=None)
    assert books.findings() == []
    again = plan("c2-t2")
    chat_id = chat_of(books, STOPPED)
    books.send(chat_id, again)
    fence = books.world.claim(chat_id)
    books.world.do(machine.interrupt, chat_id)
    books.tell(books.world.do(machine.finish_interrupt, fence))
    assert books.findings() == ["turn interrupted by nobody"]


def test_a_turn_cancelled_by_nobody(books: Books) -> None:
    books.sql("UPDATE rejoinder.turns SET state = 'cancelled', answer_id = NULL")
    assert "turn cancelled by nobody" in books.findings()


def test_a_failed_turn(books: Books) -> None:
    chat_id = books.create(plan("c3-t1"))
    books.tell(books.world.do(machine.fail, books.world.claim(chat_id), BOOM))
    assert books.findings() == ["turn failed"]


@pytest.mark.parametrize(("kills", "found"), [(2, ["turn failed"]), (3, [])])
def test_a_chat_that_was_given_up_was_killed_often_enough(
    books: Books, kills: int, found: list[str]
) -> None:
    lost = replace(BOOM, kind="worker_lost")
    chat_id = books.create(plan("c3-t1"))
    books.tell(books.world.do(machine.fail, books.world.claim(chat_id), lost))
    for _ in range(kills):
        books.journal.fault(Kind.WORKER_KILL, "step1", [str(chat_id)])
    assert books.findings() == found
