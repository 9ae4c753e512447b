"""Whatever history holds, the prompt is one that a model can read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rejoinder.core.decide import Entry
from rejoinder.core.messages import Role
from rejoinder.core.model import PromptMessage, ToolSpec
from rejoinder.core.parts import (
    Part,
    ProviderBlock,
    Raw,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
)
from rejoinder.core.prompt import CONTINUE, EARLIER, NO_RESULT, active_tools, assemble
from tests.unit.prompts import check_prompt, histories

CLAUDE = "anthropic:claude-a-20250101"
MISSING = {"content": NO_RESULT, "is_error": True}


def system(*parts: Part) -> PromptMessage:
    return PromptMessage(Role.SYSTEM, parts)


def user(*parts: Part | str) -> PromptMessage:
    return PromptMessage(Role.USER, tuple(Text(p) if isinstance(p, str) else p for p in parts))


def assistant(*parts: Part, model: str | None = CLAUDE, stop: str | None = None) -> PromptMessage:
    return PromptMessage(Role.ASSISTANT, parts, model=model, stop=stop)


def tool(*results: ToolResult) -> PromptMessage:
    return PromptMessage(Role.TOOL, results)


def call(call_id: str) -> ToolCall:
    return ToolCall(call_id, "add", {"a": 1})


def said(*history: PromptMessage) -> tuple[tuple[Part, ...], ...]:
    prompt = assemble(history, "anthropic", model="claude-a")
    check_prompt(prompt)
    return tuple(message.parts for message in prompt)


@given(
    history=histories,
    model=st.sampled_from([None, "claude-a", "claude-b"]),
    caching=st.booleans(),
)
def test_any_history_gives_a_valid_prompt_and_once_is_enough(
    history: list[PromptMessage], model: str | None, *, caching: bool
) -> None:
    prompt = assemble(history, "anthropic", model=model, caching=caching)
    check_prompt(prompt)
    assert assemble(prompt, "anthropic", model=model, caching=caching) == prompt
    assert any(message.cached for message in prompt) is caching


def test_rows_of_history_are_as_good() -> None:
    entry = Entry(1, Role.USER, (Text("Hi"),))
    assert assemble([entry], "anthropic") == (user("Hi"),)


def test_the_five_message_case_of_caching() -> None:
    history = (system(Text("a")), system(Text("b")), user("u"), assistant(Text("v")), user("w"))
    prompt = assemble(history, "anthropic", caching=True)
    assert [n for n, message in enumerate(prompt) if message.cached] == [1, 3, 4]
    assert not any(message.cached for message in history)


def test_nothing_is_marked_where_nothing_is_cached() -> None:
    marked = PromptMessage(Role.USER, (Text("u"),), cached=True)
    assert assemble([marked], "anthropic")[0].cached is False


def test_system_messages_come_first() -> None:
    assert said(user("u"), system(Text("s"))) == ((Text("s"),), (Text("u"),))


def test_empty_parts_and_empty_messages_go() -> None:
    history = (user("u", " "), assistant(Text(""), Text("\n")), user(""), user("w"))
    assert said(*history) == ((Text("u"),), (Text("w"),))


def test_white_space_between_an_answers_parts_goes_back_as_it_came() -> None:
    answer = (Reasoning("", "a"), Text("\n\n"), Reasoning("", "b"), Text(" "), Text("v"))
    parts = (Text("\n"), *answer, Text(""), Text(" "))
    assert said(user("u"), assistant(*parts), user("w"))[1] == answer
    unsigned = (Reasoning("unsigned"), Text("\n\n"), Text("v"))
    assert said(user("u"), assistant(*unsigned), user("w"))[1] == (Text("v"),)
    called = (call("1"), Text(" "), call("1"))
    assert said(user("u"), assistant(*called), user("w"))[1] == (call("1"),)


def test_white_space_of_another_model_stays_at_home() -> None:
    history = (user("u"), assistant(Text("v"), Text(" "), Text("w"), model="other:one"))
    assert said(*history)[1] == (Text("v"), Text("w"))


def test_signed_thinking_stays_even_if_it_is_empty() -> None:
    kept = (Reasoning("", "sig"), Reasoning("", "data", {"type": "redacted_thinking"}))
    history = (user("u"), assistant(*kept, Reasoning("unsigned"), Text("v")), user("w"))
    assert said(*history)[1] == (*kept, Text("v"))


def test_a_call_without_a_result_gets_an_honest_one_before_the_next_message() -> None:
    history = (user("u"), assistant(call("1"), call("2")), tool(ToolResult("2", "b")), user("w"))
    assert said(*history)[2:] == (
        (ToolResult("1", **MISSING), ToolResult("2", "b")),  # type: ignore[arg-type]
        (Text("w"),),
    )


def test_an_id_that_a_model_uses_again_gets_another_name_and_keeps_its_result() -> None:
    history = (
        user("u"),
        assistant(call("1")),
        tool(ToolResult("1", "a")),
        assistant(call("1")),
        tool(ToolResult("1", "b")),
        assistant(call("1_2")),
        tool(ToolResult("1_2", "c")),
    )
    results = [part for parts in said(*history) for part in parts if isinstance(part, ToolResult)]
    assert [result.content for result in results] == ["a", "b", "c"]
    assert [result.call_id for result in results] == ["1", "1_2", "1_2_2"]


def test_results_stand_in_call_order_directly_after_their_calls() -> None:
    history = (
        user("u"),
        assistant(call("1"), call("2")),
        user("between"),
        tool(ToolResult("2", "b"), ToolResult("2", "again")),
        tool(ToolResult("1", "a")),
    )
    assert said(*history)[2:] == ((ToolResult("1", "a"), ToolResult("2", "b")), (Text("between"),))


def test_a_result_without_a_call_goes() -> None:
    early = (user("u"), tool(ToolResult("1", "early")), assistant(call("1")))
    assert said(*early)[2] == (ToolResult("1", **MISSING),)  # type: ignore[arg-type]
    assert said(user("u"), tool(ToolResult("9", "whose?"))) == ((Text("u"),),)


def test_a_call_that_was_made_before_goes() -> None:
    answer = tool(ToolResult("1", "a"))
    history = (user("u"), assistant(call("1")), answer, assistant(call("1"), Text("v")), user("w"))
    assert said(*history)[3] == (Text("v"),)


def test_calls_that_the_provider_runs_are_not_ours_to_answer() -> None:
    there = ToolCall("s", "web_search", {}, provider_executed=True)
    found = ProviderBlock("anthropic", {"type": "web_search_tool_result", "tool_use_id": "s"})
    history = (user("u"), assistant(there, found, Text("v")), user("w"))
    assert said(*history)[1] == (there, found, Text("v"))


@pytest.mark.parametrize("model", ["x:claude-a", None])
def test_another_provider_gets_words_and_calls_only(model: str | None) -> None:
    answer = assistant(
        Reasoning("Hm", "sig"),
        Text("v", {"citations": [1]}),
        ToolCall("s", "web_search", {}, provider_executed=True),
        ProviderBlock("x", {"type": "found"}),
        ToolCall("1", "add", {}, extra={"caller": 1}),
        model=model,
    )
    assert said(user("u"), answer, tool(ToolResult("1", "a")))[1] == (
        Text("v"),
        ToolCall("1", "add", {}),
    )


def test_thinking_of_another_family_goes_and_of_another_release_stays() -> None:
    thought = Reasoning("Hm", "sig")
    own = assistant(thought, Text("v"), model="anthropic:claude-a-latest")
    other = assistant(thought, Text("v"), model="anthropic:claude-b-20250101")
    assert said(user("u"), own, user("w"))[1] == (thought, Text("v"))
    assert said(user("u"), other, user("w"))[1] == (Text("v"),)


@pytest.mark.parametrize(
    ("poison", "healed"),
    [
        ({"type": "text", "text": "kept", "mood": "?"}, Text("kept")),
        ({"type": "text"}, None),
        ({"type": "reasoning", "signature": 3}, None),
        ({"type": "image", "source": {}}, Raw({"type": "image", "source": {}})),
        ({"no": "type"}, None),
    ],
)
def test_what_a_user_sent_heals_or_goes(poison: dict[str, object], healed: Part | None) -> None:
    parts = said(user(Raw(poison), "u"))[0]  # type: ignore[arg-type]
    assert parts == ((healed, Text("u")) if healed else (Text("u"),))


def test_arguments_that_are_no_object_become_an_empty_one() -> None:
    raw = Raw({"type": "tool_call", "call_id": "1", "name": "add", "arguments": "{broken"})
    assert said(user("u"), assistant(raw))[1] == (ToolCall("1", "add", {}),)
    wrong = ToolCall("1", "add", [1])  # type: ignore[arg-type]
    assert said(user("u"), assistant(wrong))[1] == (ToolCall("1", "add", {}),)


def test_a_prompt_is_never_empty_and_begins_with_a_user() -> None:
    assert said() == ((Text(EARLIER),),)
    assert said(system(Text("s"))) == ((Text("s"),), (Text(EARLIER),))
    assert said(assistant(Text("v")), user("w"))[0] == (Text(EARLIER),)


def test_a_prompt_ends_with_a_user_unless_the_model_paused() -> None:
    assert said(user("u"), assistant(Text("v")))[-1] == (Text(CONTINUE),)
    assert said(user("u"), assistant(Text("v"), stop="pause"))[-1] == (Text("v"),)
    assert said(user("u"), assistant(Text("v"), stop="pause", model="x:y"))[-1] == (Text(CONTINUE),)
    there = ToolCall("s", "web_search", {}, provider_executed=True)
    assert said(user("u"), assistant(there))[-1] == (there,)


def test_messages_of_one_role_in_a_row_stay() -> None:
    assert len(said(user("a"), user("b"), assistant(Text("c")), assistant(Text("d")))) == 5


def test_active_tools_are_each_once_and_in_one_order() -> None:
    specs = [ToolSpec(name, "", {}) for name in ("b", "a", "c", "a")]
    assert [tool.name for tool in active_tools(specs)] == ["a", "b", "c"]
    assert [tool.name for tool in active_tools(specs, {"c", "b", "z"})] == ["b", "c"]
    assert active_tools(specs, ()) == ()
