"""The auditor of `make chaos` can fail, part two: messages that steer, and people who are asked."""

import time
from dataclasses import replace
from uuid import UUID

import pytest
from sqlalchemy import Engine

from models import machine
from scripts.chaos_parts import trail
from scripts.chaos_parts.journal import Decision, Outcome, Stop
from scripts.chaos_parts.ledger import NOBODY
from scripts.chaos_parts.plan import Plan
from tests.chats import World
from tests.integration.chaos_books import Books, call_of, plan

FIRST, JOINS, QUEUED = plan("c0-t1", ("ledger_once",)), plan("c0-t2", ("quick",)), plan("c0-t3")
ALLOWED, DENIED = plan("c1-t1", ("ledger_asked",)), plan("c2-t1", ("ledger_asked",))
ANSWERED, LEFT = plan("c3-t1", ("ask_office",)), plan("c4-t1", ("ask_briefly",))
AGREED = plan("c5-t1", ("ledger_agreed",))


@pytest.fixture
def books(engine: Engine) -> Books:
    """Begin with nothing."""
    trail.install(engine)
    return Books(World(engine))


@pytest.fixture
def steered(books: Books) -> Books:
    """A message that was sent last joins the turn before one that waits."""
    chat_id = books.create(FIRST)
    books.world.do(machine.release, books.world.claim(chat_id))
    books.send(chat_id, QUEUED)
    fence = books.world.claim(chat_id)
    books.send(chat_id, JOINS, "steer")
    books.world.do(machine.release, fence)
    books.answer(chat_id, JOINS)
    books.answer(chat_id, QUEUED)
    assert books.findings() == []
    return books


def turn_of(books: Books, number: int) -> str:
    return str(books.journal.asked[number].turn_id)


def test_a_message_that_came_too_late_to_steer_has_a_turn_of_its_own(books: Books) -> None:
    chat_id = books.create(FIRST)
    books.step(chat_id, FIRST, 0)
    fence = books.world.claim(chat_id)
    books.send(chat_id, JOINS, "steer")
    books.world.do(machine.release, fence)  # it joins now
    books.answer(chat_id, JOINS)
    late = plan("c0-t9")
    books.send(chat_id, late, "steer")
    books.answer(chat_id, late)
    assert books.findings() == []


def test_an_answer_to_the_message_before_the_one_that_joined(steered: Books) -> None:
    steered.sql(
        "UPDATE rejoinder.messages SET parts = replace(parts::text, :now, :then)::json"
        " WHERE role = 'assistant'",
        now=JOINS.answer,
        then=FIRST.answer,
    )
    assert steered.findings() == ["wrong answer"]


@pytest.mark.parametrize(
    "change", ["state = 'interrupted'", "answer_id = NULL", "ended_at = ended_at + '1 s'"]
)
def test_a_turn_that_does_not_end_with_the_one_it_joined(steered: Books, change: str) -> None:
    steered.sql(
        f"UPDATE rejoinder.turns SET {change} WHERE joined_id IS NOT NULL"  # noqa: S608
    )
    assert steered.findings() == ["joined turns part"]


def test_a_turn_that_joined_nothing(steered: Books) -> None:
    steered.sql(
        "UPDATE rejoinder.turns SET joined_id = gen_random_uuid() WHERE joined_id IS NOT NULL"
    )
    assert "joined nothing" in steered.findings()


def test_a_message_that_joined_after_the_answer(steered: Books) -> None:
    steered.sql(
        "UPDATE rejoinder.turns SET answer_id = 1 WHERE id = :id OR joined_id = :id",
        id=turn_of(steered, 0),
    )
    assert {"joined after the answer", "wrong answer"} <= set(steered.findings())


def test_a_message_that_was_to_wait_and_joined(steered: Books) -> None:
    asked = steered.journal.asked[2]
    steered.journal.asked[2] = replace(asked, mode="queue")
    assert steered.findings() == ["joined unasked"]


def test_a_message_that_overtook_another_without_joining(steered: Books) -> None:
    steered.sql("UPDATE rejoinder.turns SET joined_id = NULL")
    assert "message out of order" in steered.findings()


def test_an_answer_to_another_turn(steered: Books) -> None:
    steered.sql(
        "UPDATE rejoinder.messages SET turn_id = gen_random_uuid()"
        " WHERE role = 'user' AND parts::text LIKE :like",
        like=f"%{QUEUED.id}%",
    )
    assert "answer to another" in steered.findings()


def test_one_stop_ends_a_turn_with_all_that_joined_it(books: Books) -> None:
    chat_id = books.create(FIRST)
    books.send(chat_id, JOINS, "steer")
    fence = books.world.claim(chat_id)
    books.world.do(machine.interrupt, chat_id)
    books.tell(books.world.do(machine.finish_interrupt, fence))
    assert books.findings() == ["turn interrupted by nobody"]
    books.journal.stop(Stop(str(chat_id), turn_of(books, 1), time.time() - 1, "driver"))
    assert books.findings() == []


@pytest.fixture
def office(books: Books) -> Books:
    """One chat each: allowed, denied, answered, left to its default, allowed by default."""
    for asked, what, words in (
        (ALLOWED, "approve", ""),
        (DENIED, "deny", "no"),
        (ANSWERED, "answer", "yes"),
        (LEFT, "", ""),
        (AGREED, "", ""),
    ):
        chat_id = books.create(asked)
        books.ask(chat_id, asked)
        if what:
            books.decide(chat_id, call_of(asked), what, words)
        else:
            books.expire(chat_id)
        if asked in (ALLOWED, AGREED):
            books.run(chat_id, asked)
        books.answer(chat_id, asked, done_steps=1)
    assert books.findings() == []
    return books


def chat_of(books: Books, plan_id: str) -> UUID:
    return UUID(next(a.chat_id for a in books.journal.asked if a.plan.id == plan_id))


def decided(books: Books, call_id: str) -> int:
    return next(n for n, d in enumerate(books.journal.decisions) if d.call_id == call_id)


def test_a_call_that_is_run_after_it_was_denied(office: Books) -> None:
    chat_id = chat_of(office, DENIED.id)
    office.note("begin", "ledger_asked", DENIED.nonce(0, 0), call_of(DENIED), chat_id)
    assert office.findings() == ["run without leave"]


def test_a_call_that_is_run_before_it_was_allowed(office: Books) -> None:
    place = decided(office, call_of(ALLOWED))
    late = replace(office.journal.decisions[place], asked_at=time.time() + 60)
    office.journal.decisions[place] = late
    assert office.findings() == ["run without leave"]


def test_a_call_that_was_allowed_and_run_twice(office: Books) -> None:
    chat_id = chat_of(office, ALLOWED.id)
    office.note("begin", "ledger_asked", ALLOWED.nonce(0, 0), call_of(ALLOWED), chat_id)
    assert set(office.findings()) == {"tool run twice"}


def test_a_call_that_was_allowed_by_nobody(office: Books) -> None:
    del office.journal.decisions[decided(office, call_of(ALLOWED))]
    assert office.findings() == ["run without leave"]


def test_two_who_were_both_heard(office: Books) -> None:
    first = office.journal.decisions[decided(office, call_of(ALLOWED))]
    office.journal.decision(replace(first, what="deny", words="no"))
    assert "decided twice" in office.findings()


def test_one_who_was_heard_and_one_who_may_have_been(office: Books) -> None:
    first = office.journal.decisions[decided(office, call_of(ALLOWED))]
    office.journal.decision(replace(first, what="deny", outcome=Outcome.UNKNOWN))
    assert office.findings() == []


@pytest.mark.parametrize("asked", [ALLOWED, DENIED, ANSWERED])
def test_a_decision_that_was_lost(office: Books, asked: Plan) -> None:
    office.sql(
        "UPDATE rejoinder.tool_calls SET approval = NULL, result = :result WHERE call_id = :id",
        id=call_of(asked),
        result='{"is_error": true, "content": "The user stopped the turn before", "type": "x"}',
    )
    assert "decision lost" in office.findings()


def test_a_call_that_was_denied_by_nobody(office: Books) -> None:
    del office.journal.decisions[decided(office, call_of(DENIED))]
    assert office.findings() == ["denied by nobody"]


def test_an_answer_that_nobody_gave(office: Books) -> None:
    place = decided(office, call_of(ANSWERED))
    office.journal.decisions[place] = replace(office.journal.decisions[place], words="another")
    assert office.findings() == ["wrong result"]


def test_the_loser_of_two_answers_stands(office: Books) -> None:
    place = decided(office, call_of(ANSWERED))
    won = office.journal.decisions[place]
    lost = replace(won, words="no", outcome=Outcome.REFUSED)
    office.journal.decision(lost)
    assert office.findings() == []
    office.journal.decisions[place] = replace(won, outcome=Outcome.REFUSED)
    office.journal.decision(replace(lost, outcome=Outcome.ACCEPTED))
    assert office.findings() == ["wrong result"]


@pytest.mark.parametrize(("asked", "found"), [(LEFT, "wrong result"), (AGREED, "timeout")])
def test_a_default_that_came_too_early(office: Books, asked: Plan, found: str) -> None:
    office.sql(
        "UPDATE rejoinder.tool_calls SET created_at = ended_at WHERE call_id = :id",
        id=call_of(asked),
    )
    assert [each[: len(found)] for each in office.findings()] == [found]


def test_a_default_that_nobody_declared(office: Books) -> None:
    office.sql(
        "UPDATE rejoinder.tool_calls SET result = replace(result::text, 'yes', :nobody)::json"
        " WHERE name = 'ask_office'",
        nobody=NOBODY,
    )
    assert office.findings() == ["wrong result"]


def test_a_timeout_that_came_too_early(books: Books) -> None:
    asked = plan("c6-t1", ("ask_office",))
    chat_id = books.create(asked)
    books.ask(chat_id, asked)
    books.expire(chat_id)
    books.answer(chat_id, asked, done_steps=1)
    assert books.findings() == []
    books.sql("UPDATE rejoinder.tool_calls SET created_at = ended_at")
    assert books.findings() == ["timeout too early"]


def test_an_error_that_nobody_knows(office: Books) -> None:
    office.sql(
        "UPDATE rejoinder.tool_calls SET result = replace(result::text, :known, 'Boom')::json"
        " WHERE call_id = :id",
        known="The user did not allow",
        id=call_of(DENIED),
    )
    assert "call failed" in office.findings()


def test_a_refused_decision_changes_nothing(office: Books) -> None:
    now = time.time()
    chat_id = str(chat_of(office, LEFT.id))
    late = Decision(chat_id, call_of(LEFT), "answer", "late", Outcome.REFUSED, now, now)
    office.journal.decision(late)
    assert office.findings() == []
