"""How a chat's events are told to a person."""

import io
from typing import Any

from rejoinder.cli.screen import PlainScreen, printable
from rejoinder.cli.telling import Teller
from rejoinder.streams import StreamEvent


def part(of: str, text: str = "", *, seq: int, n: int = 1, index: int = 0, **more: Any) -> Any:
    data = {"of": of, "index": index, "seq": seq, "n": n, "history_version": 1, "attempt": 0}
    return ("part", {**data, "text": text, **more})


def message(role: str, *parts: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return ("message", {"id": 1, "role": role, "parts": list(parts)})


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def told(*events: tuple[str, dict[str, Any]]) -> str:
    out = io.StringIO()
    teller = Teller(PlainScreen(out))
    for kind, data in events:
        teller.tell(StreamEvent("1-0", kind, data))
    return out.getvalue()


def test_what_was_streamed_is_not_told_again_when_it_is_stored() -> None:
    live = [part("text", "Hello", seq=1), part("text", " there", seq=2), part("end", seq=3)]
    assert told(*live, message("assistant", text("Hello there"))) == "Hello there\n"


def test_what_was_not_streamed_is_told_when_it_is_stored() -> None:
    assert told(message("assistant", text("Hello"))) == "Hello\n"


def test_thinking_has_its_mark_and_its_line() -> None:
    live = [
        part("reasoning", "Hm.", seq=1),
        part("end", seq=2),
        part("text", "Yes", seq=3, index=1),
    ]
    assert told(*live) == "✻ Hm.\nYes"


def test_the_answer_of_a_dead_worker_is_void_when_another_begins_anew() -> None:
    said = told(part("text", "One two", seq=2, n=2), part("text", "One", seq=1))
    assert said == "One two\n· the attempt above broke off; what follows replaces it\nOne"


def test_a_result_is_told_with_the_call_that_it_answers() -> None:
    call = {"type": "tool_call", "call_id": "c", "name": "add", "arguments": {"a": 1}}
    result = {"type": "tool_result", "call_id": "c", "content": [text("two\nlines")]}
    said = told(message("assistant", call), message("tool", {**result, "is_error": True}))
    assert said == "  ✗ add(a=1) → two lines\n"


def test_a_stop_is_told_before_the_message_that_comes_next() -> None:
    said = told(("status", {"status": "interrupting"}), message("user", text("Next")))
    assert said == "· stopped; what was written stays\n› Next\n"  # noqa: RUF001


def test_an_event_of_a_newer_release_is_left_out() -> None:
    assert told(("novelty", {"x": 1})) == ""


def test_a_model_cannot_command_the_terminal() -> None:
    assert (
        printable("a\x1b[2Jb\x07\r\nc\ttab é 猫 👩‍🚀 \ud800")
        == "a\ufffd[2Jb\ufffd\nc\ttab é 猫 👩‍🚀 \ufffd"
    )


def test_a_summary_is_told_in_a_line_at_its_beginning_and_one_at_its_end() -> None:
    begun = ("compaction", {"state": "started", "tokens_before": 150_000, "source": "automatic"})
    piece = ("compaction", {"state": "part", "text": "We did things."})
    marker = message("assistant", text("The conversation was summarised."), {"type": "compaction"})
    over = ("compaction", {"state": "finished", "tokens_before": 150_000})
    assert told(begun, piece, piece, marker, over, message("assistant", text("Done."))) == (
        "· summarising the conversation, about 150,000 tokens, to go on with less\n"
        "· The conversation was summarised.\n"
        "Done.\n"
    )
    failed = ("compaction", {"state": "failed", "message": "Too much to do."})
    assert told(failed) == "· no summary was written: Too much to do.\n"


def test_a_budget_that_is_used_up_is_told_with_what_was_spent() -> None:
    spent = {"tokens": 12345, "cost": "1.50"}
    said = told(("action_required", {"kind": "budget", "spent": spent, "budget": {}}))
    assert "the budget is used up (12,345 tokens, $1.50)" in said
