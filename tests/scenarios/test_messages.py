"""Messages in motion, through real workers on threads and on prefork.

What is steered, queued, edited, tried again and put away; and readers who rebuild all of it.
"""

import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from rejoinder.client import Client, StreamEvent, Turn, TurnFailed
from rejoinder.core.errors import Rejected
from rejoinder.core.state import AT_REST
from rejoinder.streams import key_of
from rejoinder.testing import call, fail, play, say, together
from rejoinder.view import ChatView
from tests.integration.invariants import assert_invariants
from tests.scenarios.conftest import Stage
from tests.waiting import wait_until

LONG = 60.0


@dataclass
class Gate:
    """A tool that waits, and how to let it go on."""

    path: Path

    def call(self) -> dict[str, Any]:
        return together(say("Let me see."), call("wait_for", path=str(self.path)))

    def reached(self) -> None:
        wait_until(lambda: Path(f"{self.path}.begun").exists(), LONG, "the tool runs")

    def open(self) -> None:
        self.path.touch()


@pytest.fixture
def gates(tmp_path: Path) -> Iterator[Gate]:
    return (Gate(tmp_path / f"gate-{number}") for number in itertools.count())


def start(stage: Stage, *steps: dict[str, Any], words: str = "Go.", **more: Any) -> Turn:
    return stage.client.create_chat(
        words, owner="joe", model="scripted:inline", options={"extra": play(list(steps))}, **more
    )


def told(stage: Stage, turn: Turn) -> list[str]:
    """The history, e.g. "user: Go."."""
    lines = []
    for message in stage.client.get_messages(turn.chat_id)["messages"]:
        words = [str(part.get("text", part.get("content", ""))) for part in message["parts"]]
        lines.append(f"{message['role']}: {' '.join(words)}")
    return lines


def at_rest(stage: Stage, turn: Turn) -> dict[str, Any]:
    def rested() -> dict[str, Any] | None:
        chat = stage.client.get_chat(turn.chat_id)
        return chat if chat["status"] in AT_REST else None

    found = wait_until(rested, LONG, "the chat is at rest")
    assert found is not None
    return found


def test_a_message_steered_while_a_tool_runs_is_seen_in_the_next_step(
    stage: Stage, gates: Iterator[Gate]
) -> None:
    gate = next(gates)
    turn = start(stage, gate.call(), say("You said: {user}"))
    gate.reached()
    one = stage.client.send_message(turn.chat_id, "Wait.", when_busy="steer")
    two = stage.client.send_message(turn.chat_id, "In French.", when_busy="steer")
    assert [each["steer"] for each in stage.client.get_chat(turn.chat_id)["queue"]] == [True, True]
    gate.open()
    answers = [each.get(timeout=LONG) for each in (turn, one, two)]
    assert told(stage, turn) == [
        "user: Go.",
        "assistant: Let me see. ",
        "tool: it is there",
        "user: Wait.",
        "user: In French.",
        "assistant: You said: In French.",
    ]
    assert {(a["state"], a["text"], a["message_id"]) for a in answers} == {
        ("finished", "You said: In French.", answers[0]["message_id"])
    }
    assert [a["turn_id"] for a in answers] == [turn.turn_id, one.turn_id, two.turn_id]


def test_stopping_a_steered_turn_stops_the_one_it_joined(
    stage: Stage, gates: Iterator[Gate]
) -> None:
    one, two = next(gates), next(gates)
    turn = start(stage, one.call(), two.call(), say("Done."))
    one.reached()
    steered = stage.client.send_message(turn.chat_id, "Hurry.", when_busy="steer")
    one.open()
    two.reached()
    stage.client.interrupt(turn.chat_id, turn_id=steered.turn_id, wait=True)
    assert {each.get(timeout=LONG)["state"] for each in (turn, steered)} == {"interrupted"}


def test_queued_messages_are_listed_deleted_and_promoted(
    stage: Stage, gates: Iterator[Gate]
) -> None:
    gate = next(gates)
    turn = start(stage, gate.call(), say("One: {user}"), say("Two: {user}"))
    gate.reached()
    sent = [
        stage.client.send_message(turn.chat_id, text, model=model)
        for text, model in (("a", None), ("b", None), ("c", "scripted:echo"))
    ]
    queue = stage.client.get_chat(turn.chat_id)["queue"]
    assert [(q["parts"][0]["text"], q["model"], q["turn_id"]) for q in queue] == [
        ("a", None, sent[0].turn_id),
        ("b", None, sent[1].turn_id),
        ("c", "scripted:echo", sent[2].turn_id),
    ]
    stage.client.delete_queued(turn.chat_id, queue[0]["id"])
    with pytest.raises(Rejected, match="not in the queue"):
        stage.client.delete_queued(turn.chat_id, queue[0]["id"])
    assert sent[0].get(timeout=LONG)["state"] == "cancelled"
    stage.client.promote_queued(turn.chat_id, queue[2]["id"])
    assert turn.get(timeout=LONG)["state"] == "interrupted"
    assert sent[2].get(timeout=LONG)["text"] == "One: c"
    assert sent[1].get(timeout=LONG)["text"] == "Two: b"
    assert stage.client.get_chat(turn.chat_id)["model"] == "scripted:echo"
    assert [line for line in told(stage, turn) if line.startswith("user")] == [
        "user: Go.",
        "user: c",
        "user: b",
    ]


def test_a_message_is_edited_in_the_middle_of_a_turn_with_another_model(
    stage: Stage, gates: Iterator[Gate]
) -> None:
    gate = next(gates)
    turn = start(stage, gate.call(), say("You said: {user}"))
    gate.reached()
    steered = stage.client.send_message(turn.chat_id, "Wait.", when_busy="steer")
    first = stage.client.get_messages(turn.chat_id)["messages"][0]["id"]
    edited = stage.client.edit_message(turn.chat_id, first, "Anew.", model="scripted:echo")
    assert {each.get(timeout=LONG)["state"] for each in (turn, steered)} == {"cancelled"}
    gate.open()
    assert edited.get(timeout=LONG)["text"] == "You said: Anew."
    assert told(stage, turn)[0] == "user: Anew."
    assert len(told(stage, turn)) == len(["user", "assistant", "tool", "assistant"])
    assert stage.client.get_chat(turn.chat_id)["model"] == "scripted:echo"


def test_after_an_error_it_is_tried_again_or_edited(stage: Stage) -> None:
    turn = stage.client.create_chat("Go.", owner="joe", model="anthropic:claude-sonnet-4-6")
    with pytest.raises(TurnFailed):
        turn.get(timeout=LONG)
    assert at_rest(stage, turn)["last_error"]["kind"] == "missing_key"
    again = stage.client.retry(turn.chat_id)
    with pytest.raises(TurnFailed):
        again.get(timeout=LONG)  # there is still no key
    first = stage.client.get_messages(turn.chat_id)["messages"][0]["id"]
    edited = stage.client.edit_message(turn.chat_id, first, "Hm.", model="scripted:echo")
    assert edited.get(timeout=LONG)["text"] == "You said: Hm."
    assert stage.client.get_chat(turn.chat_id)["last_error"] is None


def test_chats_are_found_by_what_they_are(stage: Stage) -> None:
    owner = "librarian"

    def found(**filters: Any) -> list[str]:
        return [c["id"] for c in stage.client.list_chats(owner, **filters)["chats"]]

    def made(words: str, **more: Any) -> str:
        turn = stage.client.create_chat(words, owner=owner, model="scripted:echo", **more)
        turn.get(timeout=LONG)
        return turn.chat_id

    root = made("About trees", labels={"team": "blue", "kind": "talk"})
    child = made("A leaf of it", parent_id=root)
    other = made("About 100% of the rest", labels={"team": "red"})
    failing = start(stage, together(fail("auth", times=None), say("Never.")), words="Broken")
    assert found() == [other, child, root]
    assert found(roots=True) == [other, root]
    assert found(parent_id=root) == [child]
    assert found(root_id=root) == [child, root]
    assert found(labels={"team": "blue"}) == [root]
    assert found(labels={"team": "blue", "kind": "walk"}) == []
    assert found(title="ABOUT") == [other, root]
    assert found(title="0% of") == [other]
    assert found(title="_") == []
    stage.client.set_labels(other, {"team": None, "kind": "talk"})
    assert found(labels={"kind": "talk"}) == [other, root]
    assert stage.client.get_chat(other)["labels"] == {"kind": "talk"}
    assert stage.client.archive(root)["changed"]
    assert found() == [other]
    assert found(archived=True) == [child, root]
    assert found(archived=None) == [other, child, root]
    with pytest.raises(Rejected, match="archived"):
        stage.client.send_message(child, "Hello?")
    assert stage.client.unarchive(root)["changed"]
    page = stage.client.list_chats(owner, limit=2)
    assert [c["id"] for c in page["chats"]] == [other, child]
    assert found(before=page["next"]) == [root]
    at_rest(stage, failing)
    assert [
        c["id"] for c in stage.client.list_chats("joe", status="error", title="broken")["chats"]
    ]


def test_messages_are_paged_from_both_ends(stage: Stage) -> None:
    turn = start(stage, *[together(say(f"{n}"), call("add", a=n, b=1)) for n in range(3)], say("."))
    turn.get(timeout=LONG)
    client = stage.client
    everything = client.get_messages(turn.chat_id)["messages"]
    assert len(everything) == 8
    forward: list[Any] = []
    page: dict[str, Any] = {"next": 0}
    while page["next"] is not None:
        page = client.get_messages(turn.chat_id, after=page["next"], limit=3)
        forward += page["messages"]
    assert forward == everything
    page = client.get_messages(turn.chat_id, newest_first=True, limit=3)
    backward = page["messages"]
    while page["next"] is not None:
        page = client.get_messages(turn.chat_id, before=page["next"], limit=3)
        backward += page["messages"]
    assert backward == everything[::-1]
    ids = [each["id"] for each in everything]
    between = client.get_messages(turn.chat_id, after=ids[1], before=ids[4], newest_first=False)
    assert between["messages"] == everything[2:4]


# Readers.


class Reader(threading.Thread):
    """Somebody who follows a chat with a view, in a thread and with a connection of their own."""

    def __init__(self, stage: Stage, chat_id: str, view: ChatView, after: str | None) -> None:
        super().__init__(daemon=True)
        self.view = view
        self.cursor = after
        self.kinds: list[str] = []
        self._url, self._chat_id, self._after = stage.redis_url, chat_id, after
        self._until = threading.Event()
        self.start()

    def run(self) -> None:
        with Client(broker_url=self._url, timeout=30) as client:
            for event in client.follow(self._chat_id, after=self._after, idle_seconds=0.3):
                if event is None:
                    if self._until.is_set():
                        return
                    continue
                self.hear(event)

    def hear(self, event: StreamEvent) -> None:
        self.view.apply(event)
        self.kinds.append(event.kind)
        self.cursor = event.cursor

    def leave(self) -> "Reader":
        """Hear what there is, and go."""
        self._until.set()
        self.join(LONG)
        assert not self.is_alive()
        return self


def assert_sees_the_rows(stage: Stage, chat_id: str, view: ChatView) -> None:
    chat = stage.client.get_chat(chat_id)
    assert view.messages == stage.client.get_messages(chat_id, limit=200)["messages"]
    assert view.state == {name: chat[name] for name in view.state}
    assert view.queue == chat["queue"]
    assert view.asked == chat["asked"]
    assert view.live == []


def play_a_lively_chat(stage: Stage, gates: Iterator[Gate], turn: Turn) -> None:
    """Everything that a person may do, one after the other; the first gate was reached."""
    client, chat_id, gate = stage.client, turn.chat_id, next(gates)
    client.send_message(chat_id, "Steered.", when_busy="steer")
    for text in ("one", "two", "three"):
        client.send_message(chat_id, text)
    queue = client.get_chat(chat_id)["queue"]
    client.delete_queued(chat_id, queue[1]["id"])
    client.set_title(chat_id, "A lively one")
    client.set_labels(chat_id, {"team": "blue"})
    gate.open()
    at_rest(stage, turn)
    steered = next(m for m in client.get_messages(chat_id)["messages"] if "Steered" in str(m))
    edited = client.edit_message(chat_id, steered["id"], "Edited.", model="scripted:echo")
    edited.get(timeout=LONG)
    client.archive(chat_id)


@pytest.fixture
def lively(stage: Stage, gates: Iterator[Gate]) -> tuple[Turn, Iterator[Gate]]:
    gate = next(gates)
    turn = start(stage, gate.call(), *[say(f"{n}: {{user}}", pace=0.005) for n in range(9)])
    gate.reached()
    return turn, itertools.chain([gate], gates)


def test_readers_from_the_start_and_from_the_middle_see_what_the_rows_say(
    stage: Stage, lively: tuple[Turn, Iterator[Gate]]
) -> None:
    turn, gates = lively
    steady = Reader(stage, turn.chat_id, ChatView(), None)
    absent = Reader(stage, turn.chat_id, ChatView(), None).leave()
    play_a_lively_chat(stage, gates, turn)
    back = Reader(stage, turn.chat_id, absent.view, absent.cursor)
    late = Reader(stage, turn.chat_id, ChatView(), None)
    for reader in (steady, back, late):
        assert_sees_the_rows(stage, turn.chat_id, reader.leave().view)
    assert "part" in steady.kinds
    assert "gap" not in steady.kinds + back.kinds
    assert_invariants(stage.world.engine)


def test_a_reader_who_missed_everything_sees_what_the_rows_say(
    stage: Stage, lively: tuple[Turn, Iterator[Gate]]
) -> None:
    turn, gates = lively
    absent = Reader(stage, turn.chat_id, ChatView(), None).leave()
    play_a_lively_chat(stage, gates, turn)
    with redis.Redis.from_url(stage.redis_url) as server:
        server.delete(key_of("rejoinder:", turn.chat_id))
    back = Reader(stage, turn.chat_id, absent.view, absent.cursor).leave()
    assert back.kinds[0] == "gap"
    assert_sees_the_rows(stage, turn.chat_id, back.view)


def test_a_view_of_the_rows_goes_on_with_events_alone(
    stage: Stage, lively: tuple[Turn, Iterator[Gate]]
) -> None:
    turn, gates = lively
    view, cursor = ChatView(), stage.client.cursor(turn.chat_id)
    view.load(
        stage.client.get_chat(turn.chat_id), stage.client.get_messages(turn.chat_id)["messages"]
    )
    play_a_lively_chat(stage, gates, turn)
    for event in stage.client.stream(turn.chat_id, after=cursor, idle_seconds=0.5):
        if event is None:
            break
        view.apply(event)
    assert_sees_the_rows(stage, turn.chat_id, view)
