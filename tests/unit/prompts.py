"""Histories, legal and not, and what makes a prompt valid."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from rejoinder.core.messages import Role
from rejoinder.core.model import PromptMessage, StopReason
from rejoinder.core.parts import (
    Part,
    ProviderBlock,
    Raw,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    open_calls,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

MODELS = [None, "anthropic:claude-a", "anthropic:claude-a-20250101", "anthropic:claude-b", "x:y"]
ids = st.sampled_from(["c1", "c2", "c3", "c:4|", ""])
words = st.sampled_from(["", " \n", "Hi", "Bye", "é\ud800", "nul\0"])
extras = st.sampled_from([None, {"caller": {"type": "direct"}}])
use = st.sampled_from(["srv1", "srv2"])
results: st.SearchStrategy[Any] = st.sampled_from(
    [
        *("", "fine", None, 7, {"a": 1}, [], ["x"], [{"type": "text", "text": ""}]),
        [{"type": "image", "source": {}}, {"type": "text", "text": "see"}],
    ]
)
calls = st.builds(ToolCall, ids, st.sampled_from(["add", "a.b", ""]), st.just({}), extra=extras)
served = st.builds(
    ToolCall,
    use,
    st.just("web_search"),
    st.just({"q": 1}),
    st.just(value=True),
    st.sampled_from([None, {"type": "server_tool_use"}]),
)
blocks = st.builds(
    ProviderBlock,
    st.sampled_from(["anthropic", "x"]),
    st.one_of(
        st.builds(
            lambda i: {"type": "web_search_tool_result", "tool_use_id": i, "content": []}, use
        ),
        st.just({"type": "novel"}),
    ),
)
raws = st.builds(
    Raw,
    st.sampled_from(
        [
            {},
            {"type": 7},
            {"type": "text"},
            {"type": "text", "text": "kept", "cache_control": {}},
            {"type": "tool_call", "call_id": "c1", "name": "add", "arguments": "{"},
            {"type": "tool_call", "name": "add"},
            {"type": "tool_result", "call_id": "c2"},
            {"type": "image", "source": {"type": "url"}},
            {"type": "from_the_future", "x": 1},
        ]
    ),
)
parts: st.SearchStrategy[Part] = st.one_of(
    st.builds(Text, words, st.sampled_from([None, {"citations": [1]}])),
    st.builds(
        Reasoning,
        words,
        st.sampled_from([None, "", "sig"]),
        st.sampled_from([None, {"type": "redacted_thinking"}]),
    ),
    calls,
    served,
    st.builds(ToolResult, ids, results, st.booleans()),
    blocks,
    raws,
)
messages = st.builds(
    PromptMessage,
    st.sampled_from(Role),
    st.lists(parts, max_size=4).map(tuple),
    st.booleans(),
    st.sampled_from(MODELS),
    st.sampled_from([None, "end", StopReason.PAUSE.value]),
)
histories = st.lists(messages, max_size=9)


def check_prompt(prompt: Sequence[PromptMessage]) -> None:
    """The system first, a user's words next, every call answered directly after, nothing empty."""
    roles = [message.role for message in prompt]
    talk = [message for message in prompt if message.role is not Role.SYSTEM]
    assert roles[: len(roles) - len(talk)] == [Role.SYSTEM] * (len(roles) - len(talk))
    assert talk[0].role is Role.USER
    asked: set[str] = set()
    waiting: list[str] = []
    for message in talk:
        assert message.parts
        if message.role is Role.TOOL:
            answers = [p.call_id for p in message.parts if isinstance(p, ToolResult)]
            assert len(answers) == len(message.parts)
            assert answers == waiting
            waiting = []
            continue
        assert waiting == []
        if message.role is Role.ASSISTANT:
            waiting = [call.call_id for call in open_calls(message.parts)]
            made = [p.call_id for p in message.parts if isinstance(p, ToolCall)]
            assert asked.isdisjoint(made)
            assert len(set(made)) == len(made)
            asked |= set(made)
    assert waiting == []
    for message in prompt:
        blank = [isinstance(p, Text) and not p.text.strip() for p in message.parts]
        assert not any(isinstance(p, Text) and not p.text for p in message.parts)
        assert not any(blank if message.role is not Role.ASSISTANT else (blank[0], blank[-1]))


def check_body(body: dict[str, Any]) -> None:
    """What the Messages API would refuse is not there."""
    turns = body["messages"]
    roles = [turn["role"] for turn in turns]
    assert roles[0] == "user"
    assert all(a != b for a, b in pairwise(roles))
    marks = 0
    owed: list[str] = []
    used: set[str] = set()
    for turn in turns:
        blocks = turn["content"]
        assert blocks
        marks += sum("cache_control" in block for block in blocks)
        answers = [b["tool_use_id"] for b in blocks if b["type"] == "tool_result"]
        assert answers == owed
        assert all(b["type"] == "tool_result" for b in blocks[: len(answers)])
        owed = [b["id"] for b in blocks if b["type"] == "tool_use"]
        assert used.isdisjoint(owed)
        used |= set(owed)
        if turn["role"] == "assistant":
            assert blocks[-1]["type"] not in ("thinking", "redacted_thinking")
            assert all(b["signature"] for b in blocks if b["type"] == "thinking")
            assert blocks[0].get("text", "a").strip()
            assert blocks[-1].get("text", "a").strip()
        for block in blocks:
            check_block(block, said=turn["role"] == "assistant")
    assert owed == []
    check_server_calls(turns)
    marks += sum("cache_control" in block for block in body.get("system", ()))
    assert marks <= 4
    if used:
        assert body["tools"]


def check_block(block: dict[str, Any], *, said: bool = False) -> None:
    if block["type"] == "text":
        assert block["text"].strip() or (said and block["text"] and "cache_control" not in block)
    if block["type"] == "tool_use":
        assert isinstance(block["input"], dict)
        assert block["name"]
        assert all(c.isalnum() or c in "_-" for c in block["name"] + block["id"])
    if block["type"] == "tool_result" and isinstance(block.get("content"), list):
        assert all(b["type"] != "text" or b["text"] for b in block["content"])
    if block["type"] == "tool_result" and block.get("is_error"):
        assert block["content"]


def check_server_calls(turns: list[dict[str, Any]]) -> None:
    """Every result has its call; a call without a result is still owed by the server."""
    asked: set[str] = set()
    for turn in turns:
        for block in turn["content"]:
            if block["type"].endswith("_tool_result"):
                assert block["tool_use_id"] in asked
            if block["type"].endswith("_tool_use"):
                asked.add(block["id"])
    given = {
        b["tool_use_id"] for t in turns for b in t["content"] if b["type"].endswith("_tool_result")
    }
    since_dangling = False
    for turn in turns:
        if since_dangling and turn["role"] == "user":
            assert all(b["type"] == "tool_result" for b in turn["content"])
        dangling = {b["id"] for b in turn["content"] if b["type"].endswith("_tool_use")} - given
        since_dangling = since_dangling or bool(dangling)
