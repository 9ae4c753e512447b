"""A history that is cut until it fits: the longest texts first, nothing broken, nothing stored."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rejoinder.core.decide import Entry
from rejoinder.core.estimate import prompt_tokens
from rejoinder.core.fitting import LEAST, fit, shorten
from rejoinder.core.messages import Role
from rejoinder.core.parts import Json, Part, Raw, Reasoning, Text, ToolCall, ToolResult, text_of
from rejoinder.core.prompt import NO_RESULT, assemble

IMAGE: Mapping[str, Json] = {"type": "image", "source": {"type": "base64", "data": "A" * 100}}


def entry(role: Role, *parts: Part, tokens: int | None = None, compressed: bool = False) -> Entry:
    return Entry(1, role, parts, context_tokens=tokens, compressed=compressed)


def user(text: str) -> Entry:
    return entry(Role.USER, Text(text))


def test_what_fits_stays_as_it_is() -> None:
    history = (user("hello"), entry(Role.ASSISTANT, Reasoning("Hm", "sig"), Text("hi"), tokens=90))
    assert fit(history, 100) == history


def test_what_the_provider_counted_decides_whether_anything_is_cut() -> None:
    history = (user("x" * 100_000), entry(Role.ASSISTANT, Text("hi"), tokens=90))
    assert fit(history, 1_000) == history, "it has counted, we only guess"


def test_the_longest_texts_lose_their_middle_and_the_short_ones_nothing() -> None:
    short = user("Never use tabs. " * 20)
    long = user("BEGIN " + "x" * 90_000 + " END")
    cut = fit((short, long, short), 2_000)
    assert (cut[0].parts, cut[2].parts) == (short.parts, short.parts)
    text = text_of(cut[1].parts)
    assert text.startswith("BEGIN")
    assert text.endswith("END")
    assert "characters are left out" in text
    assert 1_900 < prompt_tokens(cut) <= 2_000, "no more is cut than must be"


def test_results_and_arguments_are_cut_too_and_keep_their_shape() -> None:
    long = "x" * 50_000
    call = ToolCall("c", "write", {"path": "/a", "lines": [long], "deep": {"text": long}})
    blocks: list[Json] = [{"type": "text", "text": long}, IMAGE]
    results = (ToolResult("c", long), ToolResult("d", blocks), ToolResult("e", {"rows": [long]}))
    history = (
        user("Go."),
        entry(Role.ASSISTANT, Reasoning(long, "sig"), call, tokens=None),
        entry(Role.TOOL, *results),
    )
    cut = fit(history, 3_000, overhead=500)
    assert prompt_tokens(cut, 500) <= 3_000
    (called,) = cut[1].parts
    assert isinstance(called, ToolCall)
    assert called.arguments["path"] == "/a"
    assert isinstance(called.arguments["lines"], list)
    first, second, third = (part.content for part in cut[2].parts if isinstance(part, ToolResult))
    assert isinstance(first, str)
    assert isinstance(second, list)
    assert [each.get("type") for each in second if isinstance(each, dict)] == ["text", "text"]
    assert isinstance(third, str)
    assert third.startswith('{"rows"')


def test_of_many_messages_the_oldest_go_and_the_summary_stays() -> None:
    system = entry(Role.SYSTEM, Text("Be kind. " * 100))
    summary = entry(Role.USER, Text("So far."), compressed=True)
    talk = [user(f"{n} " + "x" * 300) for n in range(1_000)]
    cut = fit((system, summary, *talk), 5_000)
    assert cut[:2] == (system, summary)
    assert cut[-1] == talk[-1]
    assert 10 < len(cut) < 60
    assert prompt_tokens(cut) <= 5_000


def test_a_prompt_is_valid_though_its_calls_were_left_behind() -> None:
    history = [user("Go.")]
    for n in range(300):
        history += [
            entry(Role.ASSISTANT, ToolCall(f"c{n}", "look", {})),
            entry(Role.TOOL, ToolResult(f"c{n}", "x" * 300)),
        ]
    prompt = assemble((*fit(history, 2_000), user("Summarise.")), "scripted")
    assert prompt[0].role is Role.USER
    roles = [message.role for message in prompt]
    for place, role in enumerate(roles):
        assert (role is Role.TOOL) == (place > 0 and roles[place - 1] is Role.ASSISTANT)
    assert NO_RESULT not in str(prompt)


@pytest.mark.parametrize("length", [1, 2, 3, 10, 99])
def test_a_shortened_text_keeps_as_much_as_it_was_given(length: int) -> None:
    text = "".join(map(chr, range(0x4E00, 0x4E00 + 100)))
    cut = shorten(text, length)
    head, tail = length * 2 // 3, length - length * 2 // 3
    assert cut.startswith(text[:head])
    assert cut.endswith(text[-tail:])
    assert f"{100 - length} characters" in cut
    assert shorten(text, 100) == text


texts = st.text(max_size=3).flatmap(lambda t: st.integers(0, 4_000).map(lambda n: t * n))
parts = st.one_of(
    texts.map(Text),
    st.builds(Reasoning, texts, st.none() | st.text(max_size=3)),
    st.builds(ToolCall, st.just("c"), st.just("t"), st.dictionaries(st.just("a"), texts)),
    st.builds(ToolResult, st.just("c"), texts | st.lists(texts, max_size=2)),
    st.just(Raw(IMAGE)),
)
roles = st.sampled_from([Role.USER, Role.ASSISTANT, Role.TOOL])
histories = st.lists(st.builds(entry, roles, parts), max_size=8)


@settings(max_examples=50, deadline=None)
@given(histories, st.integers(1_000, 5_000))
def test_whatever_is_cut_fits_and_can_be_cut_again(history: list[Entry], room: int) -> None:
    cut = fit(history, room)
    newest = prompt_tokens(cut[-1:]) if cut else 0
    assert prompt_tokens(cut) <= max(room, newest)
    assert newest <= max(room, LEAST * 4)
    assert fit(cut, room) == tuple(replace(e, context_tokens=None) for e in cut)
