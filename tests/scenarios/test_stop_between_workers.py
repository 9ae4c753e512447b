"""A worker goes or dies in mid-answer, nobody takes the chat yet, and the user presses stop."""

import signal

import pytest

from rejoinder.client import Turn
from rejoinder.streams import StreamEvent
from rejoinder.view import ChatView
from tests.integration.invariants import assert_invariants
from tests.scenarios.house import House
from tests.waiting import wait_until

LONG = 60.0
QUICKLY = {"REJOINDER_DRAIN_SECONDS": "0.5"}
WORDS = " ".join(f"word{number}" for number in range(400))
SLOW = {"text": WORDS, "pace": 0.05}


def seen(house: House, turn: Turn) -> str:
    """The words that a reader has seen so far."""
    view = ChatView()
    text = ""
    for event in house.client.stream(turn.chat_id, idle_seconds=0.05):
        if event is None:
            return text
        view.apply(event)
        text = view.live_text or text
    raise AssertionError


def left_in_mid_answer(house: House, number: signal.Signals) -> tuple[Turn, str]:
    """A chat whose worker was told to go, or was killed, in the middle of its words."""
    worker = house.worker(env=QUICKLY)
    turn = house.start(SLOW)
    wait_until(lambda: "word9 " in seen(house, turn), LONG)
    worker.signal(number)
    worker.wait(LONG)

    def pending() -> bool:
        house.client.app.send_task("rejoinder.sweep", queue="rejoinder.control")
        return bool(house.row(turn)["status"] == "pending")

    wait_until(pending, LONG)
    return turn, seen(house, turn)


def answers(house: House, turn: Turn) -> list[str]:
    said = house.client.get_messages(turn.chat_id)["messages"]
    return [each["parts"][0]["text"] for each in said if each["role"] == "assistant"]


BOTH = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])


@BOTH
def test_the_words_that_readers_had_seen_are_in_history(
    house: House, number: signal.Signals
) -> None:
    turn, words = left_in_mid_answer(house, number)
    assert house.client.interrupt(turn.chat_id) == "waiting"
    (kept,) = answers(house, turn)
    assert kept.startswith(words.rstrip())
    assert "word9 " in kept
    assert WORDS.startswith(kept)
    assert turn.get(timeout=LONG)["text"] == kept
    assert_invariants(house.world.engine)


@BOTH
def test_if_the_chat_goes_on_readers_drop_them_before_the_next_word(
    house: House, number: signal.Signals
) -> None:
    turn, words = left_in_mid_answer(house, number)
    assert words
    worker = house.worker(env=QUICKLY)
    events: list[StreamEvent] = []

    def read() -> bool:
        events[:] = _events(house, turn)
        attempts = [each for each in events if each.kind == "part" and _is_first(each)]
        return len(attempts) > 1

    wait_until(read, LONG)
    kinds = ["first" if each.kind == "part" and _is_first(each) else each.kind for each in events]
    first = kinds.index("first")
    again = kinds.index("first", first + 1)
    assert "preview_reset" in kinds[first:again]
    view = ChatView()
    for event in events[: again + 1]:
        view.apply(event)
    assert WORDS.startswith(view.live_text.rstrip())
    assert len(view.live_text) < len(words), "only the new attempt's words"
    house.client.interrupt(turn.chat_id, wait=True)
    worker.stop()


def _is_first(event: StreamEvent) -> bool:
    return bool(event.data["seq"] == event.data["n"])


def _events(house: House, turn: Turn) -> list[StreamEvent]:
    found = []
    for event in house.client.stream(turn.chat_id, idle_seconds=0.05):
        if event is None:
            break
        found.append(event)
    return found
