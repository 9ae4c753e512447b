"""The auditor of `make chaos` can fail, part four: commands that nobody waited for."""

import time
from dataclasses import replace

import pytest
from sqlalchemy import Engine

from models import machine
from models.machine import NewChat
from scripts.chaos_parts import trail
from scripts.chaos_parts.journal import Command, Outcome, Stop
from tests.chats import World, words
from tests.integration.chaos_books import Books, plan

MADE, SENT, PARKED = plan("command-1"), plan("command-2"), plan("command-3", ("ask_office",))


@pytest.fixture
def books(engine: Engine) -> Books:
    """A chat that was commanded, and a message in it: both done, and answered."""
    trail.install(engine)
    made = Books(World(engine))
    chat_id = made.world.do(machine.create, NewChat("commands", words(MADE.text))).chat_id
    made.answer(chat_id, MADE)
    made.world.do(machine.send, chat_id, words(SENT.text))
    made.answer(chat_id, SENT)
    now = time.time()
    for number, each in enumerate((MADE, SENT)):
        verb = "send_message" if number else "create_chat"
        told = str(chat_id) if number else None
        made.journal.command(
            Command(f"task-{number}", verb, Outcome.ACCEPTED, now, now, each, told)
        )
    assert made.findings() == []
    return made


def forget(books: Books) -> None:
    """The second message never came."""
    turn = "SELECT turn_id FROM rejoinder.messages WHERE parts::text LIKE '%command-2%' LIMIT 1"
    (row,) = books.world.read(turn)
    for table, column in (("messages", "turn_id"), ("turns", "id")):
        books.sql(f"DELETE FROM rejoinder.{table} WHERE {column} = :t", t=row["turn_id"])  # noqa: S608


def test_a_command_that_was_not_done(books: Books) -> None:
    forget(books)
    assert books.findings() == ["command lost"]


def test_a_command_that_was_done_twice(books: Books) -> None:
    (chat,) = books.world.read("SELECT id FROM rejoinder.chats")
    books.world.do(machine.send, chat["id"], words(SENT.text))
    books.answer(chat["id"], SENT)
    assert books.findings() == ["command doubled"]


def test_a_command_that_created_two_chats(books: Books) -> None:
    again = books.world.do(machine.create, NewChat("commands", words(MADE.text)))
    books.answer(again.chat_id, MADE)
    assert books.findings() == ["command doubled"]


def test_one_that_the_broker_did_not_take_may_be_done_or_not(books: Books) -> None:
    *_, sent = books.journal.commands
    books.journal.commands[-1] = replace(sent, outcome=Outcome.UNKNOWN)
    assert books.findings() == []
    forget(books)
    assert books.findings() == []


def test_one_of_two_with_the_same_key_is_enough(books: Books) -> None:
    *_, sent = books.journal.commands
    books.journal.command(replace(sent, task_id="task-9"))
    assert books.findings() == []
    forget(books)
    assert books.findings() == ["command lost"]


@pytest.mark.parametrize(
    ("after", "held", "found"),
    [
        (10.0, {"task-1"}, []),
        (10.0, {"task-0"}, ["command lost"]),  # its message was not in the broker any more
        (-10.0, set(), ["command lost"]),  # it came after the loss
        (0.0, set(), []),  # it came and went while the broker was away
    ],
)
def test_only_what_was_in_the_broker_when_it_lost_everything_is_excused(
    books: Books, after: float, held: set[str], found: list[str]
) -> None:
    forget(books)
    books.journal.wiped(time.time(), held)
    (wipe,) = books.journal.wipes
    at = books.journal.commands[-1].asked_at + after
    books.journal.wipes[0] = replace(wipe, began=at, ended=at + 1)
    assert books.findings() == found


@pytest.mark.parametrize("done", [True, False])
def test_an_interrupt_ends_the_turn_that_it_is_for(books: Books, *, done: bool) -> None:
    chat_id = books.world.do(machine.create, NewChat("commands", words(PARKED.text))).chat_id
    books.ask(chat_id, PARKED)
    turn_id = str(books.world.row(chat_id)["turn_id"])
    now = time.time()
    where = (str(chat_id), turn_id)
    books.journal.command(
        Command("task-2", "create_chat", Outcome.ACCEPTED, now, now, PARKED, where[0])
    )
    books.journal.command(Command("task-3", "interrupt", Outcome.ACCEPTED, now, now, None, *where))
    books.journal.stop(Stop(str(chat_id), None, now, "command"))
    if done:
        books.tell(books.world.do(machine.interrupt, chat_id))
        assert books.findings() == []
    else:
        assert "command lost" in books.findings()
