"""What a process keeps of histories: the version that was asked for, and not too much."""

import time
from uuid import uuid4

import pytest

from rejoinder.core.decide import Entry
from rejoinder.core.messages import NewMessage, Role, Usage, Visibility
from rejoinder.core.parts import Text
from tasks.histories import MOST_SECONDS, Histories, longer


def entries(count: int) -> tuple[Entry, ...]:
    return tuple(Entry(number, Role.USER, (Text("Hello."),)) for number in range(count))


def test_only_the_version_that_is_asked_for_is_given_and_once() -> None:
    histories, chat = Histories(), uuid4()
    histories.keep(chat, 3, entries(2))
    assert histories.take(uuid4(), 3) is None
    assert histories.take(chat, 3) == entries(2)
    assert histories.take(chat, 3) is None
    histories.keep(chat, 3, entries(2))
    assert histories.take(chat, 4) is None
    assert histories.take(chat, 3) is None, "it is an old one: nobody will ask for it again"


def test_the_oldest_go_when_there_are_too_many_messages() -> None:
    histories, chats = Histories(most=10), [uuid4() for _ in range(3)]
    for chat in chats:
        histories.keep(chat, 1, entries(4))
    histories.keep(chats[1], 2, entries(6))  # instead of its older one
    assert histories.take(chats[0], 1) is None
    assert [histories.take(chats[1], 2), histories.take(chats[2], 1)] == [entries(6), entries(4)]
    histories.keep(chats[0], 1, entries(11))
    assert histories.take(chats[0], 1) is None


def test_what_is_taken_makes_room() -> None:
    histories, chats = Histories(most=10), [uuid4(), uuid4()]
    histories.keep(chats[0], 1, entries(8))
    histories.take(chats[0], 1)
    histories.keep(chats[1], 1, entries(9))
    assert histories.take(chats[1], 1) == entries(9)


def test_what_nobody_comes_for_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    histories, chats = Histories(), [uuid4(), uuid4()]
    histories.keep(chats[0], 1, entries(1))
    later = time.monotonic() + MOST_SECONDS
    monkeypatch.setattr("tasks.histories.time.monotonic", lambda: later)
    histories.keep(chats[1], 1, entries(1))
    histories.expire()
    assert [histories.take(chat, 1) for chat in chats] == [None, entries(1)]


def test_a_longer_history_has_what_the_model_is_shown() -> None:
    notice = NewMessage(Role.ASSISTANT, (Text("For people."),), Visibility.USER)
    answer = NewMessage(
        Role.ASSISTANT, (Text("Yes."),), model="a:b", usage=Usage(input_tokens=5), stop_reason="end"
    )
    made = longer(entries(1), [(7, notice), (8, answer)])
    assert made[1:] == (Entry(8, Role.ASSISTANT, (Text("Yes."),), "a:b", "end", 5),)
