"""Compaction through real workers: the turn goes on, nothing is lost, and it comes to an end."""

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

import pytest

from rejoinder.client import StreamEvent, Turn, TurnFailed
from rejoinder.core.errors import Rejected
from tests.integration.invariants import assert_invariants
from tests.scenarios.conftest import Stage
from tests.waiting import wait_until

LONG = 60.0
FULL = {"input_tokens": 100_000, "cache_read_tokens": 50_000, "output_tokens": 10}
SMALL = {"input_tokens": 1_000, "output_tokens": 10}
ADD = {"name": "add", "arguments": {"a": 1, "b": 2}}
LOOK = {"text": "Look.", "calls": [ADD], "usage": FULL}
DONE = {"text": "Done.", "usage": SMALL}
SUMMARY = {"text": "We added numbers.", "usage": {"input_tokens": 150_100, "output_tokens": 7}}
SLOW = {"text": "We added many numbers, and it took us long.", "pace": 0.5}


def start(stage: Stage, *turns: list[Any], words: str = "Go.", **more: Any) -> Turn:
    script: dict[str, Any] = {"turns": list(turns), "summary": more.pop("summary", SUMMARY)}
    return stage.client.create_chat(
        words, owner="joe", model="scripted:inline", options={"extra": {"script": script}, **more}
    )


def told(stage: Stage, turn: Turn) -> list[str]:
    """What people see; a compaction in one word."""
    said = []
    for message in stage.client.get_messages(turn.chat_id)["messages"]:
        kinds = [part["type"] for part in message["parts"]]
        words = [str(p.get("text", p.get("content", ""))) for p in message["parts"]]
        text = "~" if "compaction" in kinds else "".join(words)
        said.append(f"{message['role']}: {text}")
    return said


def markers(stage: Stage, turn: Turn) -> list[dict[str, Any]]:
    messages = stage.client.get_messages(turn.chat_id)["messages"]
    return [m for m in messages if any(p["type"] == "compaction" for p in m["parts"])]


def summaries(stage: Stage, turn: Turn) -> list[str]:
    """What the model reads instead."""
    rows = stage.world.read(
        "SELECT parts FROM rejoinder.messages WHERE chat_id = :c AND visibility = 'model'"
        " ORDER BY id",
        c=turn.chat_id,
    )
    return ["\n".join(part["text"] for part in row["parts"]) for row in rows]


def events(
    stage: Stage, turn: Turn, until: Callable[[StreamEvent], bool], after: str | None = None
) -> list[StreamEvent]:
    seen: list[StreamEvent] = []
    for event in stage.client.stream(turn.chat_id, after=after):
        if event is not None:
            seen.append(event)
            if until(event):
                return seen
    raise AssertionError


def rests(event: StreamEvent) -> bool:
    return event.kind == "status" and event.data["status"] in ("waiting", "error")


def summarising(stage: Stage, turn: Turn) -> None:
    """Wait until the first words of a summary are there."""
    events(stage, turn, lambda e: e.kind == "compaction" and e.data["state"] == "part")


def row(stage: Stage, turn: Turn) -> dict[str, Any]:
    return stage.world.row(UUID(turn.chat_id))


def states(seen: list[StreamEvent]) -> list[str]:
    return [e.data["state"] for e in seen if e.kind == "compaction" and e.data["state"] != "part"]


def test_a_full_chat_is_summarised_in_the_middle_of_its_turn_and_goes_on(stage: Stage) -> None:
    turn = start(stage, [LOOK, DONE])
    assert turn.get(timeout=LONG)["text"] == "Done."
    assert told(stage, turn) == [
        "user: Go.",
        "assistant: Look.",
        "tool: 3",
        "assistant: ~",
        "assistant: Done.",
    ]
    (marker,) = markers(stage, turn)
    assert marker["parts"][1] == {
        "type": "compaction",
        "source": "automatic",
        "tokens_before": 150_000 + marker["parts"][1]["tokens_before"] % 1_000,
    }
    assert marker["usage"]["input_tokens"] == 150_100
    assert "runtime_ms" in marker["usage"]
    (summary,) = summaries(stage, turn)
    assert "We added numbers." in summary
    assert summary.endswith("word for word:\n\nGo."), "the open question is kept as it was asked"
    used = row(stage, turn)
    assert (used["used_calls"], used["used_input"]) == (3, 100_000 + 150_100 + 1_000)


def test_progress_is_told_as_a_compaction_and_never_as_an_answer(stage: Stage) -> None:
    turn = start(stage, [LOOK, DONE])
    seen = events(stage, turn, rests)
    wait_until(lambda: turn.get(timeout=LONG))
    live = "".join(e.data["text"] for e in seen if e.kind == "part" and e.data["of"] == "text")
    assert live == "Look.Done."
    assert states(seen) == ["started", "finished"]
    parts = [e.data for e in seen if e.kind == "compaction" and e.data["state"] == "part"]
    assert "".join(p["text"] for p in parts).startswith("We added numbers.")
    assert parts[-1]["seq"] == sum(p["n"] for p in parts)


def test_a_turn_that_is_finished_is_not_summarised_but_the_next_one_is(stage: Stage) -> None:
    first = start(stage, [{"text": "One.", "usage": FULL}], [DONE])
    assert first.get(timeout=LONG)["text"] == "One."
    assert told(stage, first) == ["user: Go.", "assistant: One."]
    second = stage.client.send_message(first.chat_id, "And now? Never use tabs.")
    assert second.get(timeout=LONG)["text"] == "Done."
    assert told(stage, first)[2:] == [
        "user: And now? Never use tabs.",
        "assistant: ~",
        "assistant: Done.",
    ]
    assert summaries(stage, first)[0].endswith("And now? Never use tabs.")


def test_a_chat_at_rest_is_summarised_on_request(stage: Stage) -> None:
    turn = start(stage, [{"text": "One.", "usage": SMALL}], [{"text": "Two."}])
    turn.get(timeout=LONG)
    asked = stage.client.compact(turn.chat_id)
    assert asked.get(timeout=LONG)["state"] == "finished"
    assert row(stage, turn)["status"] == "waiting"
    (marker,) = markers(stage, turn)
    assert marker["parts"][1]["source"] == "requested"
    assert "word for word" not in summaries(stage, turn)[0], "that message has its answer"
    after = stage.client.send_message(turn.chat_id, "Go on.")
    assert after.get(timeout=LONG)["text"] == "Two."
    assert told(stage, turn)[:3] == ["user: Go.", "assistant: One.", "assistant: ~"]


def test_a_chat_that_overflowed_is_summarised_and_works_again(stage: Stage) -> None:
    overflow = {"fail": [{"kind": "context_length"}]}
    turn = start(stage, [overflow], [{"text": "Works."}])
    with pytest.raises(TurnFailed) as caught:
        turn.get(timeout=LONG)
    assert caught.value.kind == "context_length"
    stage.client.compact(turn.chat_id).get(timeout=LONG)
    assert (row(stage, turn)["status"], row(stage, turn)["last_error"]) == ("waiting", None)
    after = stage.client.send_message(turn.chat_id, "Again.")
    assert after.get(timeout=LONG)["text"] == "Works."


def test_a_summary_call_that_overflows_is_made_with_less(stage: Stage) -> None:
    summary = {**SUMMARY, "fail": [{"kind": "context_length", "times": 2}]}
    turn = start(stage, [LOOK, DONE], summary=summary)
    assert turn.get(timeout=LONG)["text"] == "Done."
    assert len(markers(stage, turn)) == 1


def test_a_chat_that_is_still_full_after_its_summary_stops_with_advice(stage: Stage) -> None:
    turn = start(stage, [LOOK, LOOK, LOOK, DONE])
    with pytest.raises(TurnFailed) as caught:
        turn.get(timeout=LONG)
    assert caught.value.kind == "context_length"
    error = stage.client.get_chat(turn.chat_id)["last_error"]
    assert "150,000 tokens" in error["message"]
    assert "compact_at" in error["detail"]
    assert len(markers(stage, turn)) == 1
    assert told(stage, turn)[-1] == "tool: 3"


def test_a_chat_that_fills_up_again_is_summarised_again(stage: Stage) -> None:
    little = {**LOOK, "usage": SMALL}
    turn = start(stage, [LOOK, little, LOOK, DONE])
    assert turn.get(timeout=LONG)["text"] == "Done."
    assert len(markers(stage, turn)) == 2
    assert summaries(stage, turn)[1].endswith("word for word:\n\nGo."), "carried over"


def test_a_stop_during_the_summary_stores_nothing_of_it(stage: Stage) -> None:
    turn = start(stage, [LOOK, DONE], [DONE], summary=SLOW)
    summarising(stage, turn)
    stage.client.interrupt(turn.chat_id, wait=True)
    answer = turn.get(timeout=LONG)
    assert (answer["state"], answer["text"]) == ("interrupted", "Look.")
    assert row(stage, turn)["status"] == "waiting"
    assert told(stage, turn) == ["user: Go.", "assistant: Look.", "tool: 3"]
    assert summaries(stage, turn) == []
    assert "failed" in states(events(stage, turn, rests))


def test_a_stop_of_a_requested_summary_leaves_the_chat_as_it_was(stage: Stage) -> None:
    turn = start(stage, [DONE], summary=SLOW)
    turn.get(timeout=LONG)
    asked = stage.client.compact(turn.chat_id)
    summarising(stage, turn)
    stage.client.interrupt(turn.chat_id, wait=True)
    assert asked.get(timeout=LONG)["state"] == "interrupted"
    assert told(stage, turn) == ["user: Go.", "assistant: Done."]
    assert summaries(stage, turn) == []


def test_messages_sent_during_a_summary_are_all_answered(stage: Stage) -> None:
    turn = start(stage, [LOOK, DONE], [{"text": "Steered."}], [{"text": "Queued."}], summary=SLOW)
    summarising(stage, turn)
    queued = stage.client.send_message(turn.chat_id, "Later.")
    steered = stage.client.send_message(turn.chat_id, "At once.", when_busy="steer")
    assert turn.get(timeout=LONG)["text"] == "Steered."
    assert steered.get(timeout=LONG)["text"] == "Steered."
    assert queued.get(timeout=LONG)["text"] == "Queued."
    assert told(stage, turn)[3:] == [
        "assistant: ~",
        "user: At once.",
        "assistant: Steered.",
        "user: Later.",
        "assistant: Queued.",
    ]


def test_a_message_that_stops_a_summary_is_answered_behind_another_one(stage: Stage) -> None:
    turn = start(stage, [LOOK, DONE], [{"text": "Two."}], summary=SLOW)
    summarising(stage, turn)
    urgent = stage.client.send_message(turn.chat_id, "Stop. Why?", when_busy="interrupt")
    assert turn.get(timeout=LONG)["state"] == "interrupted"
    assert urgent.get(timeout=LONG)["text"] == "Two."
    assert told(stage, turn)[3:] == ["user: Stop. Why?", "assistant: ~", "assistant: Two."]


def test_messages_sent_during_a_requested_summary_wait_for_it(stage: Stage) -> None:
    turn = start(stage, [DONE], [{"text": "Two."}], [{"text": "Three."}], summary=SLOW)
    turn.get(timeout=LONG)
    asked = stage.client.compact(turn.chat_id)
    summarising(stage, turn)
    more = [
        stage.client.send_message(turn.chat_id, words, when_busy=how)
        for words, how in (("2", "steer"), ("3", "queue"))
    ]
    assert [each.get(timeout=LONG)["text"] for each in more] == ["Two.", "Three."]
    assert asked.get(timeout=LONG)["state"] == "finished"
    assert told(stage, turn)[2:] == [
        "assistant: ~",
        "user: 2",
        "assistant: Two.",
        "user: 3",
        "assistant: Three.",
    ]


@pytest.mark.parametrize("broken", [{"kind": "overloaded"}, {"kind": "truncated", "after": 1}])
def test_a_summary_that_fails_is_tried_again(stage: Stage, broken: Mapping[str, Any]) -> None:
    turn = start(stage, [LOOK, DONE], summary={**SUMMARY, "fail": [broken]})
    seen = events(stage, turn, rests)
    assert turn.get(timeout=LONG)["text"] == "Done."
    assert states(seen) == ["started", "failed", "started", "finished"]
    assert [e.data["attempt"] for e in seen if e.kind == "retry"] == [1]


def test_an_empty_summary_is_tried_again_and_calls_in_it_are_ignored(stage: Stage) -> None:
    turn = start(stage, [LOOK, DONE], summary={"calls": [ADD]})
    retry = events(stage, turn, lambda e: e.kind == "retry")[-1]
    assert "no summary" in retry.data["message"]
    assert told(stage, turn) == ["user: Go.", "assistant: Look.", "tool: 3"]
    stage.client.interrupt(turn.chat_id, wait=True)


def test_a_message_that_can_never_fit_is_refused_without_asking_the_model(stage: Stage) -> None:
    turn = start(stage, [DONE], words="word " * 200_000)
    with pytest.raises(TurnFailed) as caught:
        turn.get(timeout=LONG)
    assert caught.value.kind == "context_length"
    assert "about 286," in str(caught.value), "it says how many tokens, about"
    assert row(stage, turn)["used_calls"] == 0
    stage.client.compact(turn.chat_id).get(timeout=LONG)
    assert row(stage, turn)["status"] == "waiting"


def test_results_that_do_not_fit_are_summarised_before_the_model_is_asked(stage: Stage) -> None:
    long = {"name": "long_text", "arguments": {"length": 300_000}}
    turn = start(stage, [{"calls": [long] * 5, "usage": SMALL}, DONE])
    assert turn.get(timeout=LONG)["text"] == "Done."
    assert [m["role"] for m in stage.client.get_messages(turn.chat_id)["messages"]] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "assistant",
    ]
    assert markers(stage, turn)[0]["parts"][1]["tokens_before"] > 200_000


def test_another_model_can_write_the_summary(stage: Stage) -> None:
    turn = start(stage, [LOOK, DONE], compaction_model="scripted:echo")
    assert turn.get(timeout=LONG)["text"] == "Done."
    assert markers(stage, turn)[0]["model"] == "scripted:echo"
    with pytest.raises(Rejected, match="provider"):
        start(stage, [DONE], compaction_model="nobody:model")


def test_a_chat_can_say_when_and_whether_it_is_summarised(stage: Stage) -> None:
    never = start(stage, [LOOK, DONE], compact_at=100)
    early = start(stage, [{**LOOK, "usage": {"input_tokens": 2_000}}, DONE], compact_at=1)
    for turn in (never, early):
        assert turn.get(timeout=LONG)["text"] == "Done."
    assert markers(stage, never) == []
    assert len(markers(stage, early)) == 1, "1 % of 200,000 tokens are 2,000"


def test_nothing_is_left_behind(stage: Stage) -> None:
    busy = "SELECT 1 FROM rejoinder.chats WHERE status NOT IN ('waiting', 'error')"
    wait_until(lambda: not stage.world.read(busy))
    assert_invariants(stage.world.engine)
    assert "the step failed" not in stage.logs()
