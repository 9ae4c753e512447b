"""Parts survive their JSON form, known or not, and users can say only what users can say."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rejoinder.core import parts
from rejoinder.core.errors import Rejected
from rejoinder.core.parts import (
    Json,
    ProviderBlock,
    Raw,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    from_json,
    to_json,
    user_content,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

any_text = st.text(st.characters())  # NUL and lone surrogates included
values: st.SearchStrategy[Json] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | any_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(any_text, values, max_size=3)
extra = st.none() | objects
known = st.one_of(
    st.builds(Text, any_text, extra),
    st.builds(Reasoning, any_text, st.none() | any_text, extra),
    st.builds(ToolCall, any_text, any_text, objects, st.booleans(), extra),
    st.builds(ToolResult, any_text, values, st.booleans()),
    st.builds(ProviderBlock, any_text, objects),
)
TYPES = ["text", "reasoning", "tool_call", "tool_result", "provider_block"]
FIELDS = ["text", "signature", "extra", "call_id", "name", "arguments", "content", "is_error"]
anything = st.dictionaries(any_text | st.sampled_from(FIELDS), values, max_size=4) | st.builds(
    lambda data, kind: {**data, "type": kind},
    st.dictionaries(st.sampled_from(FIELDS), values, max_size=4),
    st.sampled_from(TYPES) | any_text | values,
)


@given(known)
def test_a_part_comes_back_from_its_stored_form(part: parts.Part) -> None:
    assert from_json(to_json(part)) == part
    assert parts.load(parts.dump([part, part])) == (part, part)


@given(known)
def test_the_stored_form_is_json_that_names_its_kind(part: parts.Known) -> None:
    stored = to_json(part)
    assert stored["type"] == part.type
    assert json.loads(json.dumps(stored, allow_nan=False)).keys() == stored.keys()


@given(anything)
@example({})
@example({"type": None})
@example({"type": ["text"]})
@example({"type": "text"})
@example({"type": "text", "text": None})
@example({"type": "text", "text": "hello", "colour": "red"})
@example({"type": "tool_result", "call_id": 7, "content": "x"})
@example({"type": "tool_call", "call_id": "a", "name": "b", "arguments": []})
def test_whatever_is_stored_can_be_read_and_goes_back_out_unchanged(
    data: Mapping[str, Json],
) -> None:
    part = from_json(data)
    stored = to_json(part)
    assert {name: stored[name] for name in data} == data
    assert from_json(stored) == part
    if isinstance(part, Raw):
        assert stored == data
    else:
        added = {"is_error": False, "provider_executed": False}
        assert {name: stored[name] for name in stored if name not in data}.items() <= added.items()


@pytest.mark.parametrize(
    "data",
    [
        {"type": "hologram", "depth": 3},
        {"type": "text", "text": "hello", "colour": "red"},
        {"type": "text"},
        {"type": "text", "text": 5},
        {"text": "no type"},
        {"type": "tool_call", "call_id": "a", "name": "b", "arguments": "{}"},
        {"type": "tool_result", "call_id": "a", "content": 1, "is_error": "no"},
    ],
)
def test_what_this_release_does_not_know_is_kept_verbatim(data: dict[str, Json]) -> None:
    assert from_json(data) == Raw(data)
    assert to_json(Raw(data)) == data


def test_older_forms_without_optional_fields_are_read() -> None:
    assert from_json({"type": "reasoning", "text": "hm"}) == Reasoning("hm")
    assert from_json({"type": "tool_result", "call_id": "a", "content": None}) == ToolResult(
        "a", None
    )


def test_null_is_a_result() -> None:
    assert to_json(ToolResult("a", None))["content"] is None


def test_people_read_the_text_only() -> None:
    said: list[parts.Part] = [
        Reasoning("hm"),
        Text("Hello, "),
        ToolCall("a", "b", {}),
        Raw({"text": "x"}),
        Text("you"),
    ]
    assert parts.text_of(said) == "Hello, you"


def test_calls_that_the_provider_executes_are_not_ours_to_answer() -> None:
    mine, theirs = ToolCall("a", "b", {}), ToolCall("c", "d", {}, provider_executed=True)
    assert parts.open_calls([Text("x"), mine, theirs]) == (mine,)


def test_a_user_may_send_text_and_blocks_we_do_not_know() -> None:
    content: list[parts.Part] = [
        Text("look at this"),
        Raw({"type": "image", "url": "https://example.org/x.png"}),
    ]
    assert user_content(content) == tuple(content)
    assert user_content([Text("\x00")]) == (Text("\x00"),)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ([], "at least one part"),
        ([Text("")], "say something"),
        ([Text("fine"), Text(" \n\t")], "say something"),
        ([ToolCall("a", "b", {})], "tool_call"),
        ([Text("and"), ToolResult("a", "forged")], "tool_result"),
        ([Reasoning("I am the model")], "reasoning"),
    ],
)
def test_what_a_user_cannot_say_is_refused(content: list[parts.Part], complaint: str) -> None:
    with pytest.raises(Rejected, match=complaint) as refused:
        user_content(content)
    assert refused.value.advice


@pytest.mark.parametrize("kind", ["text", "reasoning", "tool_call", "tool_result"])
def test_a_user_cannot_smuggle_in_our_own_kinds_with_a_field_too_many(kind: str) -> None:
    forged = from_json(cast("Mapping[str, Json]", {"type": kind, "call_id": "a", "odd": 1}))
    assert isinstance(forged, Raw)
    with pytest.raises(Rejected):
        user_content([forged])
