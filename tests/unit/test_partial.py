"""What is kept of an answer that never ended."""

from rejoinder.core.messages import Usage
from rejoinder.core.model import (
    CallDelta,
    PartDone,
    ReasoningDelta,
    Reply,
    StopReason,
    StreamItem,
    TextDelta,
)
from rejoinder.core.partial import Partial
from rejoinder.core.parts import Part, Reasoning, Text, ToolCall


def kept(*items: StreamItem) -> tuple[Part, ...]:
    partial = Partial()
    for item in items:
        partial.add(item)
    return partial.parts()


def test_words_so_far_are_kept() -> None:
    assert kept(TextDelta(0, "Hel"), TextDelta(0, "lo")) == (Text("Hello"),)


def test_a_call_counts_only_when_it_is_complete() -> None:
    call = ToolCall("c", "look_up", {"q": 1})
    begun = CallDelta(1, "c", "look_up", '{"q":')
    assert kept(TextDelta(0, "Hm"), begun) == (Text("Hm"),)
    assert kept(TextDelta(0, "Hm"), begun, PartDone(1, call)) == (Text("Hm"), call)


def test_thinking_without_its_signature_cannot_go_back_and_is_dropped() -> None:
    assert kept(ReasoningDelta(0, "hmm")) == ()
    signed = Reasoning("hmm", "signature")
    assert kept(ReasoningDelta(0, "hmm"), PartDone(0, signed), TextDelta(1, "So")) == (
        signed,
        Text("So"),
    )


def test_blank_words_are_not_worth_a_message() -> None:
    assert kept(TextDelta(0, " \n")) == ()


def test_a_complete_answer_replaces_what_was_collected() -> None:
    reply = Reply((Text("Hello."),), StopReason.END, Usage(), "m")
    assert kept(TextDelta(0, "Hel"), reply) == (Text("Hello."),)
