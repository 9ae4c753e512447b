"""What is said in a compaction: the instruction, what is carried over, what people read."""

import pytest

from rejoinder.core.compaction import (
    INSTRUCTION,
    NEWEST,
    Source,
    asks_for_summary,
    boundary,
    instruction,
    marker_parts,
    too_long,
)
from rejoinder.core.decide import Entry, TooLong
from rejoinder.core.messages import NewMessage, Role, Visibility
from rejoinder.core.model import StopReason
from rejoinder.core.parts import Part, Raw, Text, ToolCall, ToolResult, text_of, to_json
from rejoinder.core.prompt import assemble

MARKER = NewMessage(Role.ASSISTANT, marker_parts(Source.AUTOMATIC, 7), Visibility.USER)
IMAGE = Raw({"type": "image", "source": {"type": "url", "url": "x"}})


def user(*parts: Part | str) -> Entry:
    said = tuple(Text(part) if isinstance(part, str) else part for part in parts)
    return Entry(1, Role.USER, said)


ANSWER = Entry(2, Role.ASSISTANT, (Text("hi"),), stop=StopReason.END)
ASKS = Entry(2, Role.ASSISTANT, (ToolCall("c", "look", {}),))
RESULT = Entry(3, Role.TOOL, (ToolResult("c", "ok"),))


def stored(*history: Entry, limit: int = 200_000) -> NewMessage:
    compaction = boundary(" We did things. ", history, limit, MARKER, {})
    assert compaction.marker is MARKER
    return compaction.summary


def carried(*history: Entry, limit: int = 200_000) -> str:
    text = text_of(stored(*history, limit=limit).parts[1:])
    return text.removeprefix(f"{NEWEST}\n\n")


def test_the_summary_is_for_the_model_alone_and_marks_the_boundary() -> None:
    summary = stored(user("a"), ANSWER)
    assert (summary.role, summary.visibility) == (Role.USER, Visibility.MODEL)
    assert summary.compressed
    assert text_of(summary.parts).endswith("\n\nWe did things.")


@pytest.mark.parametrize(
    ("history", "kept"),
    [
        ((user("a"), ANSWER), ""),
        ((user("a"), ANSWER, user("b")), "b"),
        ((user("a"), ASKS, RESULT), "a"),
        ((user("a"), ASKS, RESULT, user("b")), "a\n\nb"),
        ((user("a"), ANSWER, user("b"), ASKS, RESULT), "b"),
        ((user("a"), user("b")), "a\n\nb"),
    ],
)
def test_the_users_words_without_an_answer_are_kept_as_they_are(
    history: tuple[Entry, ...], kept: str
) -> None:
    assert carried(*history) == kept


def test_they_are_kept_from_one_summary_to_the_next() -> None:
    first = stored(user("a", IMAGE), ASKS, RESULT)
    before = Entry(4, Role.USER, first.parts, compressed=True)
    assert stored(before, ASKS, RESULT).parts[1:] == first.parts[1:]
    assert carried(before, ASKS, RESULT, user("b")) == "b"
    assert stored(before, ANSWER).parts[1:] == ()


def test_images_stay_and_a_long_text_is_cut() -> None:
    message = stored(user("a", IMAGE, Raw({"type": "document", "source": {"type": "text"}})))
    assert message.parts[2:] == (IMAGE,)
    assert 16_000 < len(carried(user("x" * 100_000))) < 17_000
    assert 1_000 < len(carried(user("x" * 100_000), limit=3_000)) < 1_500


def test_the_instruction_is_the_last_word_of_a_valid_prompt() -> None:
    for history in ((user("a"), ANSWER), (user("a"), ASKS, RESULT), (user("a"),)):
        prompt = assemble((*history, instruction()), "scripted")
        assert text_of(prompt[-1].parts) == INSTRUCTION
        assert asks_for_summary(prompt)
        assert not asks_for_summary(prompt[:-1])


@pytest.mark.parametrize(
    "wanted",
    [
        "in their own words",
        "Goal",
        "Decisions",
        "Technical facts",
        "Errors and fixes",
        "what is done",
        "in progress",
        "what remains",
        "action in flight",
        "never turn it into a rule",
        "name the path or the command",
    ],
)
def test_the_instruction_asks_for_what_a_summary_must_hold(wanted: str) -> None:
    assert wanted in INSTRUCTION


def test_the_marker_is_a_sentence_and_the_same_for_programs() -> None:
    words, facts = marker_parts(Source.REQUESTED, 150_000)
    assert isinstance(words, Text)
    assert "150,000 tokens" in words.text
    assert to_json(facts) == {
        "type": "compaction",
        "source": "requested",
        "tokens_before": 150_000,
    }
    assert "tokens" not in text_of(marker_parts(Source.AUTOMATIC, 0))


@pytest.mark.parametrize("compacted", [True, False])
def test_a_failure_says_how_much_and_what_to_do(compacted: bool) -> None:  # noqa: FBT001
    failure = too_long(TooLong(250_000, 200_000, compacted=compacted))
    assert failure.kind == "context_length"
    assert not failure.retryable
    assert "250,000 tokens" in failure.message
    assert "200,000" in failure.message
    assert "larger context" in str(failure.detail)
