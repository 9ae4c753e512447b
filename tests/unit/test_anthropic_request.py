"""The body of a request: whatever the prompt, one that the API takes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from rejoinder.core.messages import Role
from rejoinder.core.model import ModelRequest, Options, PromptMessage, ToolSpec
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
from rejoinder.core.prompt import assemble
from rejoinder.providers.anthropic_blocks import wire_id, wire_name
from rejoinder.providers.anthropic_models import profile
from rejoinder.providers.anthropic_request import body_of
from tests.unit.prompts import check_body, histories

MODEL = "anthropic:claude-a"
SEARCH = ToolCall(
    "srv1", "web_search", {}, provider_executed=True, extra={"type": "server_tool_use"}
)
FOUND = ProviderBlock("anthropic", {"type": "web_search_tool_result", "tool_use_id": "srv1"})
CALL = ToolCall("t1", "add", {})
DONE = PromptMessage(Role.TOOL, (ToolResult("t1", "3"),))


def user(*parts: Part | str) -> PromptMessage:
    return PromptMessage(Role.USER, tuple(Text(p) if isinstance(p, str) else p for p in parts))


def assistant(*parts: Part, stop: str | None = None) -> PromptMessage:
    return PromptMessage(Role.ASSISTANT, parts, model=MODEL, stop=stop)


def sent(
    *history: PromptMessage, tools: tuple[ToolSpec, ...] = (), caching: bool = False, **options: Any
) -> dict[str, Any]:
    prompt = assemble(history, "anthropic", model="claude-a", caching=caching)
    request = ModelRequest("claude-a", prompt, tools, Options(**options))
    body: dict[str, Any] = json.loads(body_of(request, profile("claude-a")))
    check_body(body)
    return body


def contents(body: dict[str, Any]) -> list[Any]:
    return [turn["content"] for turn in body["messages"]]


@given(histories)
def test_any_history_gives_a_body_that_the_api_takes(history: list[PromptMessage]) -> None:
    sent(*history, caching=True)


def test_results_and_words_share_a_message_results_first() -> None:
    body = sent(user("u"), assistant(CALL), user("also"), DONE)
    assert contents(body)[2] == [
        {"type": "tool_result", "tool_use_id": "t1", "content": "3"},
        {"type": "text", "text": "also"},
    ]


def test_messages_of_one_role_are_one() -> None:
    body = sent(user("a"), user("b"), assistant(Text("c")), assistant(Text("d")), user("e"))
    assert [turn["role"] for turn in body["messages"]] == ["user", "assistant", "user"]


def test_a_paused_answer_goes_back_as_it_is() -> None:
    body = sent(user("u"), assistant(SEARCH, stop="pause"))
    assert body["messages"][-1]["role"] == "assistant"
    assert contents(body)[-1][0]["id"] == "srv1"


def test_a_search_that_the_server_still_owes_stays() -> None:
    body = sent(user("u"), assistant(SEARCH, CALL), DONE)
    assert [block["type"] for block in contents(body)[1]] == ["server_tool_use", "tool_use"]
    later = sent(user("u"), assistant(SEARCH, CALL), DONE, assistant(FOUND, Text("v")), user("w"))
    assert [block["type"] for block in contents(later)[3]] == ["web_search_tool_result", "text"]


def test_a_search_that_nobody_will_answer_goes() -> None:
    body = sent(user("u"), assistant(SEARCH, Text("v")), user("stop that"))
    assert contents(body)[1] == [{"type": "text", "text": "v"}]
    both = sent(user("u"), assistant(SEARCH, CALL), DONE, user("and now this"))
    assert [block["type"] for block in contents(both)[1]] == ["tool_use"]


def test_an_orphan_of_a_search_goes() -> None:
    assert contents(sent(user("u"), assistant(FOUND, Text("v")), user("w")))[1] == [
        {"type": "text", "text": "v"}
    ]


def test_thinking_is_not_the_end_of_a_message() -> None:
    thought = Reasoning("Hm", "sig")
    assert len(contents(sent(user("u"), assistant(Text("v"), thought), user("w")))[1]) == 1
    assert len(sent(user("u"), assistant(thought), user("w"))["messages"]) == 1


def test_marks_are_where_they_may_be() -> None:
    system = PromptMessage(Role.SYSTEM, (Text("s"),))
    thinks = assistant(Text("v"), ProviderBlock("anthropic", {"type": "novel"}))
    body = sent(system, user("u"), thinks, user("w"), caching=True)
    assert "cache_control" in body["system"][0]
    assert "cache_control" in contents(body)[1][0]
    assert "cache_control" not in contents(body)[0][0]
    assert "cache_control" in contents(body)[2][0]


def test_an_attachment_that_cannot_be_sent_is_told_about() -> None:
    image: dict[str, Json] = {"type": "image", "source": {"type": "url", "url": "u"}}
    body = sent(user(Raw({**image, "cache_control": {}}), Raw({"type": "hologram"})))
    assert contents(body)[0][0] == image
    assert "hologram" in contents(body)[0][1]["text"]


@pytest.mark.parametrize(
    ("result", "content"),
    [
        (ToolResult("t1", ""), None),
        (ToolResult("t1", None), "null"),
        (ToolResult("t1", {"é": 1}), '{"é": 1}'),
        (ToolResult("t1", [1, 2]), "[1, 2]"),
        (ToolResult("t1", [{"type": "own", "x": 1}]), '[{"type": "own", "x": 1}]'),
        (ToolResult("t1", [{"type": "text", "text": "a"}]), [{"type": "text", "text": "a"}]),
        (ToolResult("t1", "", is_error=True), "The tool failed and said nothing."),
        (ToolResult("t1", "lone \ud800"), "lone ?"),
    ],
)
def test_results(result: ToolResult, content: Any) -> None:
    body = sent(user("u"), assistant(CALL), PromptMessage(Role.TOOL, (result,)))
    assert contents(body)[2][0].get("content") == content


def test_tools_are_in_one_order_and_have_whole_schemas() -> None:
    broken: dict[str, Json] = {"type": "object", "properties": None, "required": None}
    nested: dict[str, Json] = {"properties": {"a": {"type": "object", "required": None}}}
    specs = (ToolSpec("b", "B", broken), ToolSpec("a", "A", {}), ToolSpec("c", "C", nested))
    tools = sent(user("u"), tools=specs, extra={"tools": [{"type": "web_search_1"}]})["tools"]
    assert [tool.get("name") for tool in tools] == ["a", "b", "c", None]
    assert tools[0]["input_schema"] == {"type": "object", "properties": {}}
    assert tools[1]["input_schema"] == {"type": "object", "properties": {}, "required": []}
    assert tools[2]["input_schema"]["properties"]["a"]["required"] == []


def test_a_history_of_calls_has_tools_to_refer_to() -> None:
    body = sent(user("u"), assistant(CALL), DONE)
    assert [tool["name"] for tool in body["tools"]] == ["add"]
    assert body["tool_choice"] == {"type": "none"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {}),
        ({"thinking": 2000}, {"thinking": {"type": "enabled", "budget_tokens": 2000}}),
        ({"thinking": 9999, "max_tokens": 3000},
         {"thinking": {"type": "enabled", "budget_tokens": 2999}}),
        ({"thinking": 2000, "max_tokens": 500}, {}),
        ({"thinking": "adaptive"}, {"thinking": {"type": "adaptive"}}),
        ({"thinking": True}, {"thinking": {"type": "adaptive"}}),
        ({"thinking": False}, {"thinking": {"type": "disabled"}}),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024, "x": 1}},
         {"thinking": {"type": "enabled", "budget_tokens": 1024, "x": 1}}),
        ({"temperature": 0.0}, {"temperature": 0.0}),
        ({"temperature": 0.3, "thinking": "adaptive"}, {"thinking": {"type": "adaptive"}}),
        ({"effort": "low"}, {"output_config": {"effort": "low"}}),
        ({"effort": "low", "extra": {"output_config": {"format": 1}}},
         {"output_config": {"effort": "low", "format": 1}}),
        ({"extra": {"model": "other", "stream": False, "top_p": 0.1}}, {"top_p": 0.1}),
    ],
)  # fmt: skip
def test_options(options: dict[str, Any], expected: dict[str, Any]) -> None:
    body = sent(user("u"), **options)
    assert body["stream"] is True
    fixed = {"model", "max_tokens", "messages", "stream"}
    assert {name: value for name, value in body.items() if name not in fixed} == expected
    assert body["model"] == "claude-a"
    assert body["max_tokens"] == options.get("max_tokens", 32_000)


def test_a_turn_that_began_without_thinking_goes_on_without() -> None:
    begun = (user("u"), assistant(CALL), DONE)
    assert "thinking" not in sent(*begun, thinking=2000)
    assert "thinking" in sent(*begun, thinking="adaptive")
    thought = (user("u"), assistant(Reasoning("Hm", "sig"), CALL), DONE)
    assert "thinking" in sent(*thought, thinking=2000)
    again = (*thought, assistant(ToolCall("t2", "add", {})))
    assert "thinking" in sent(*again, thinking=2000)
    assert "thinking" in sent(*begun, assistant(Text("v")), user("w"), thinking=2000)


@pytest.mark.parametrize(
    ("model", "most"),
    [("claude-3-haiku-20240307", 4096), ("claude-3-5-sonnet-latest", 8192), ("other", 8192)],
)
def test_the_default_limit_is_one_that_the_model_has(model: str, most: int) -> None:
    body = json.loads(body_of(ModelRequest(model, (user("u"),)), profile(model)))
    assert body["max_tokens"] == most


def test_names_and_ids_are_made_legal_and_stay_different() -> None:
    assert wire_name("add") == "add"
    assert wire_name("a.b") != wire_name("a/b")
    assert len(wire_name("x" * 200)) <= 64
    assert wire_id("toolu_1") == "toolu_1"
    assert wire_id("call:1") != wire_id("call|1")


def test_tools_that_must_not_be_used_are_there_all_the_same() -> None:
    spec = ToolSpec("add", "Add.", {})
    messages = (user("u"), assistant(CALL), DONE)
    loud = Options(extra={"tool_choice": {"type": "any"}})
    for options in (Options(), loud):
        request = ModelRequest("claude-a", messages, (spec,), options, tool_use=False)
        body = json.loads(body_of(request, profile("claude-a")))
        assert [tool["name"] for tool in body["tools"]] == ["add"]
        assert body["tool_choice"] == {"type": "none"}
    bare = ModelRequest("claude-a", (user("u"),), (), loud, tool_use=False)
    assert "tool_choice" not in json.loads(body_of(bare, profile("claude-a"))), (
        "refused without tools"
    )
