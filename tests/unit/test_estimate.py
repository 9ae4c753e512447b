"""Estimates of tokens: near enough, and never of what the provider has counted."""

from collections.abc import Mapping

import pytest

from rejoinder.core.decide import Entry
from rejoinder.core.estimate import (
    MEDIA_TOKENS,
    json_tokens,
    message_tokens,
    part_tokens,
    prompt_tokens,
    text_tokens,
    tools_tokens,
)
from rejoinder.core.messages import Role
from rejoinder.core.model import ToolSpec
from rejoinder.core.parts import (
    Json,
    Part,
    ProviderBlock,
    Raw,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
)

IMAGE: Mapping[str, Json] = {"type": "image", "source": {"type": "base64", "data": "A" * 100_000}}


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("", 0), ("a", 1), ("x" * 35, 10), ("é" * 35, 20), ("漢" * 7, 6), ("\ud800", 1)],
)
def test_a_text_counts_by_its_bytes(text: str, tokens: int) -> None:
    assert text_tokens(text) == tokens


@pytest.mark.parametrize(
    ("part", "tokens"),
    [
        (Text("x" * 350), 100),
        (Reasoning("x" * 350, "signature"), 100),
        (ToolCall("c", "x" * 35, {"y" * 35: "x" * 350}), 120),
        (ToolResult("c", "x" * 350), 100),
        (ToolResult("c", [{"type": "text", "text": "x" * 350}, IMAGE]), 106 + MEDIA_TOKENS),
        (ToolResult("c", None), 2),
        (ProviderBlock("p", {"a": ["x" * 350, 12]}), 102),
        (Raw(IMAGE), MEDIA_TOKENS),
        (Raw({"type": "document", "source": {"type": "base64", "data": "A" * 99}}), MEDIA_TOKENS),
        (Raw({"type": "document", "source": {"type": "text", "data": "x" * 350}}), 113),
    ],
)
def test_every_kind_of_part_counts(part: Part, tokens: int) -> None:
    assert part_tokens(part) == tokens


def test_tools_count_with_their_schemas() -> None:
    schema: dict[str, Json] = {"type": "object", "properties": {"a": {"type": "string"}}}
    assert tools_tokens([]) == 0
    assert tools_tokens([ToolSpec("add", "Add.", schema)]) == 1 + 2 + json_tokens(schema)


def entry(words: int, tokens: int | None = None) -> Entry:
    return Entry(1, Role.ASSISTANT, (Text("x" * 35 * words),), context_tokens=tokens)


def test_only_what_came_after_the_last_count_is_estimated() -> None:
    assert prompt_tokens([]) == 0
    assert prompt_tokens([entry(1), entry(2)], 7) == 7 + 14 + 24
    known = [entry(100), entry(1, 5), entry(100), entry(2, 1_000), entry(3)]
    assert prompt_tokens(known, 7) == 1_000 + 24 + 34
    assert message_tokens(()) == 4
