"""Turns through real workers, on threads and on prefork: streamed, in order, with their results."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rejoinder.client import StreamEvent, Turn, TurnFailed
from rejoinder.core.errors import Rejected
from tests.integration.invariants import assert_invariants
from tests.scenarios.conftest import Stage
from tests.waiting import wait_until

LONG = 60.0


def script(*steps: Mapping[str, Any]) -> dict[str, Any]:
    return {"extra": {"script": list(steps)}}


def start(stage: Stage, *steps: Mapping[str, Any], words: str = "Go.") -> Turn:
    return stage.client.create_chat(
        words, owner="joe", model="scripted:inline", options=script(*steps)
    )


def follow(stage: Stage, turn: Turn) -> list[StreamEvent]:
    """All events until the chat has come to rest."""
    seen: list[StreamEvent] = []
    for event in stage.client.stream(turn.chat_id):
        if event is None:
            continue
        seen.append(event)
        if event.kind == "status" and event.data["status"] in ("waiting", "error"):
            return seen
    raise AssertionError


def history(stage: Stage, turn: Turn) -> list[tuple[str, str]]:
    """Roles, and the text or the results in them."""
    told = []
    for message in stage.client.get_messages(turn.chat_id)["messages"]:
        words = [p.get("text", p.get("content", p.get("name"))) for p in message["parts"]]
        told.append((message["role"], " | ".join(map(str, words))))
    return told


def test_a_turn_with_parallel_tools_streams_and_finishes(stage: Stage) -> None:
    calls = [
        {"name": "add", "arguments": {"a": 1, "b": 2}},
        {"name": "explode", "arguments": {"reason": "boom"}},
        {"name": "add", "arguments": {"a": "x"}},
        {"name": "no_such_tool", "arguments": {}},
    ]
    turn = start(stage, {"text": "Let me see.", "calls": calls}, {"text": "That was it."})
    seen = follow(stage, turn)
    answer = turn.get(timeout=LONG)
    assert (answer["state"], answer["text"]) == ("finished", "That was it.")
    roles = [role for role, _ in history(stage, turn)]
    assert roles == ["user", "assistant", "tool", "assistant"]
    results = history(stage, turn)[2][1].split(" | ")
    assert results[0] == "3"
    assert "boom" in results[1]
    assert "b" in results[2]
    assert "no_such_tool" in results[3]
    statuses = [e.data["status"] for e in seen if e.kind == "status"]
    handed = [] if stage.keeps else ["pending", "running"]
    assert statuses == ["pending", "running", *handed, "waiting"]
    live = "".join(e.data["text"] for e in seen if e.kind == "part" and e.data["of"] == "text")
    assert live == "Let me see.That was it."
    assert [e.data["id"] for e in seen if e.kind == "message"] == sorted(
        m["id"] for m in stage.client.get_messages(turn.chat_id)["messages"]
    )
    versions = [e.data["version"] for e in seen if "version" in e.data]
    assert versions == sorted(versions)


def test_fifty_chats_at_once_finish_with_their_histories_in_order(stage: Stage) -> None:
    steps: list[Mapping[str, Any]] = [
        {"text": "One.", "calls": [{"name": "add", "arguments": {"a": 1, "b": 1}}]},
        {"text": "Two.", "calls": [{"name": "add", "arguments": {"a": 2, "b": 2}}]},
        {"text": "Three."},
    ]
    with ThreadPoolExecutor(10) as pool:
        turns = list(pool.map(lambda n: start(stage, *steps, words=f"chat {n}"), range(50)))
        answers = list(pool.map(lambda turn: turn.get(timeout=LONG), turns))
    assert [answer["text"] for answer in answers] == ["Three."] * 50
    for number, turn in enumerate(turns):
        told = history(stage, turn)
        assert told[0] == ("user", f"chat {number}")
        assert [words for role, words in told if role == "tool"] == ["2", "4"]
        assert [role for role, _ in told] == ["user", *["assistant", "tool"] * 2, "assistant"]
    assert_invariants(stage.world.engine)


def test_a_chat_uses_only_the_tools_it_was_given(stage: Stage) -> None:
    calls = [
        {"name": name, "arguments": {"a": 1, "b": 2, "reason": ""}} for name in ("add", "explode")
    ]
    turn = stage.client.create_chat(
        "Go.",
        owner="joe",
        model="scripted:inline",
        options={"tools": ["add"], **script({"calls": calls}, {"text": "Done."})},
    )
    assert turn.get(timeout=LONG)["text"] == "Done."
    results = history(stage, turn)[2][1].split(" | ")
    assert "not active" in results[1]


def test_a_turn_without_an_end_is_stopped_with_a_notice(stage: Stage) -> None:
    call = {"calls": [{"name": "add", "arguments": {"a": 1, "b": 2}}]}
    turn = stage.client.create_chat(
        "Go.",
        owner="joe",
        model="scripted:inline",
        options={"extra": {"script": {"steps": [call], "repeat": True}}},
    )
    answer = turn.get(timeout=LONG)
    assert answer["state"] == "finished"
    assert "Stopped after 30 steps" in answer["text"]
    assert [role for role, _ in history(stage, turn)].count("tool") == 30


def test_an_overloaded_model_is_asked_again(stage: Stage) -> None:
    failing = {"fail": [{"kind": "overloaded", "times": 2, "after": 1}], "text": "At last."}
    turn = start(stage, failing)
    seen = follow(stage, turn)
    assert turn.get(timeout=LONG)["text"] == "At last."
    retries = [e.data for e in seen if e.kind == "retry"]
    assert [r["attempt"] for r in retries] == [1, 2]
    assert all(r["kind"] == "overloaded" and r["message"] for r in retries)
    assert [e.kind for e in seen].count("preview_reset") == 2
    assert stage.world.row(_uuid(turn))["attempt"] == 0


def test_a_final_failure_is_told_apart_from_an_answer(stage: Stage) -> None:
    turn = start(stage, {"fail": [{"kind": "auth"}]})
    with pytest.raises(TurnFailed) as caught:
        turn.get(timeout=LONG)
    assert caught.value.kind == "auth"
    chat = stage.client.get_chat(turn.chat_id)
    assert chat["status"] == "error"
    assert chat["last_error"]["kind"] == "auth"
    assert chat["last_error"]["message"]


def test_an_interrupt_keeps_the_words_and_is_told_apart(stage: Stage) -> None:
    turn = stage.client.create_chat("Talk.", owner="joe", model="scripted:long")
    for event in stage.client.stream(turn.chat_id):
        if event is not None and event.kind == "part" and event.data["of"] == "text":
            break
    stage.client.interrupt(turn.chat_id, wait=True)
    answer = turn.get(timeout=LONG)
    assert answer["state"] == "interrupted"
    role, words = history(stage, turn)[-1]
    assert role == "assistant"
    assert "This is sentence 200" not in words
    assert words.startswith("This")
    assert answer["text"] == words


def test_messages_sent_meanwhile_are_answered_one_after_the_other(stage: Stage) -> None:
    first = start(stage, {"text": "A", "delay": 1}, {"text": "B"}, {"text": "C"}, words="1")
    more = [stage.client.send_message(first.chat_id, words) for words in "23"]
    assert [turn.get(timeout=LONG)["text"] for turn in (first, *more)] == ["A", "B", "C"]
    assert [text for _, text in history(stage, first)] == ["1", "A", "2", "B", "3", "C"]


def test_a_repeated_request_gives_the_first_ones_answer(stage: Stage) -> None:
    turns = [stage.client.create_chat("hi", owner="joe", key=f"k-{id(stage)}") for _ in range(2)]
    assert turns[0].chat_id == turns[1].chat_id
    assert turns[0].turn_id == turns[1].turn_id
    assert turns[1].get(timeout=LONG)["text"] == "You said: hi"
    with pytest.raises(Rejected, match="different request"):
        stage.client.create_chat("ho", owner="joe", key=f"k-{id(stage)}")


def test_bad_requests_are_refused_with_what_to_do(stage: Stage) -> None:
    with pytest.raises(Rejected, match="There is no chat"):
        stage.client.get_chat("00000000-0000-0000-0000-000000000000")
    with pytest.raises(Rejected, match="chat_id"):
        stage.client.get_chat("nonsense")
    with pytest.raises(Rejected, match="provider"):
        stage.client.create_chat("hi", owner="joe", model="nobody:model")
    sent = stage.client.app.send_task(
        "rejoinder.send_message", kwargs={"chat": 1}, queue="rejoinder.control"
    )
    with pytest.raises(Rejected, match="content"):
        sent.get(timeout=LONG)


def test_nothing_is_left_behind(stage: Stage) -> None:
    wait_until(
        lambda: (
            not stage.world.read(
                "SELECT 1 FROM rejoinder.chats WHERE status NOT IN ('waiting', 'error')"
            )
        )
    )
    assert_invariants(stage.world.engine)
    left = "SELECT id FROM rejoinder.turns WHERE ended_at IS NOT NULL AND NOT announced"
    wait_until(lambda: not stage.world.read(left))
    assert "the step failed" not in stage.logs()
    assert "Could not publish" not in stage.logs()


def _uuid(turn: Turn) -> Any:
    from uuid import UUID  # noqa: PLC0415

    return UUID(turn.chat_id)
