"""The scripted provider: templates, and where scripts come from."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rejoinder.core.messages import Role
from rejoinder.core.model import (
    ModelRequest,
    Options,
    PromptMessage,
    StopReason,
)
from rejoinder.core.parts import Text, ToolCall, ToolResult, text_of
from rejoinder.providers import provider_for
from rejoinder.providers.script import Script, chunks
from rejoinder.providers.script_library import LIBRARY
from rejoinder.providers.scripted import ScriptedProvider
from rejoinder.testing import call, end, fail, hang, play, run_tool, say, think, together
from rejoinder.tools import FunctionTool, examples
from tests.scripted import PROVIDER, answer, failure, reply, request, results, said, user

if TYPE_CHECKING:
    from pathlib import Path


def test_texts_and_arguments_are_templates() -> None:
    talk = [
        user("Is it {result}?"),
        answer(ToolCall("0", "weather", {}), ToolCall("1", "time", {})),
        results(
            '{"celsius": 18, "wind": {"from": "west"}, "days": [1, 2]}',
            [{"type": "text", "text": "noon"}],
        ),
    ]
    filled = {
        "{user}": "Is it {result}?",
        "{result}": '{"celsius": 18, "wind": {"from": "west"}, "days": [1, 2]}',
        "{result:1}": "noon",
        "{result:time}": "noon",
        "{result:weather.celsius} °C": "18 °C",
        "{result:0.wind.from}": "west",
        "{result:0.days.1}": "2",
        "{result:time.x}": "(no result)",
        "{result:weather.nothing}": "(no result)",
        "{result:nobody}": "(no result)",
        "{other} {} {{user}}": "{other} {} {Is it {result}?}",
        "{results}": '{"celsius": 18, "wind": {"from": "west"}, "days": [1, 2]}\nnoon',
    }
    for template, text in filled.items():
        step = together(say(template), call("f", {"deep": [{"x": template}], "n": 1}))
        parts = reply(request({"steps": [step], "repeat": True}, *talk)).parts
        assert parts[0] == Text(text)
        assert isinstance(parts[1], ToolCall)
        assert parts[1].arguments == {"deep": [{"x": text}], "n": 1}


def test_only_the_newest_results_count() -> None:
    talk = [
        user("u"),
        answer(ToolCall("0", "a", {})),
        results("old"),
        answer(ToolCall("0", "b", {})),
        results(None),
    ]
    assert (
        said(request({"steps": [say("{result} {result:a}")], "repeat": True}, *talk))
        == "null (no result)"
    )
    assert said(request([say("{result}, {user}")])) == "(no result), Hi"


def test_scripts_are_plain_json() -> None:
    script = [
        [together(think("t"), say("s", delay=1, pace=1, chunk=3), call("c", x=[1]), hang(2))],
        [
            fail("auth", times=None, after=1, retryable=False, retry_after=0.5),
            end("pause", input_tokens=1),
        ],
    ]
    travelled = json.loads(json.dumps(play(script)))
    assert Script.model_validate(travelled["script"]) == Script.model_validate(script)


@pytest.mark.parametrize(
    "script",
    [
        [],
        [[]],
        {},
        "x",
        None,
        [{"txt": "typo"}],
        [fail("no_such_kind")],
        {"steps": [{}], "turns": [[{}]]},
    ],
)
def test_a_wrong_script_is_told_by_its_path(script: Any) -> None:
    asked = ModelRequest("t", (user("x"),), options=Options(extra={"script": script}))
    found = failure(asked)
    assert found.failure.kind == "config"
    assert not found.failure.retryable
    with pytest.raises(ValueError, match="Script"):
        play(script)


def test_scripts_come_from_the_library_a_file_the_environment_or_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(model: str) -> ModelRequest:
        return ModelRequest(model, (user("Hi"),))

    assert said(ask("echo")) == "You said: Hi"
    path = tmp_path / "script.json"
    path.write_text(json.dumps({"steps": [say("from a file")], "context_limit": 5000}))
    assert said(ask(f"file:{path}")) == "from a file"
    assert PROVIDER.profile(f"file:{path}").context_limit == 5000
    monkeypatch.setenv("MY_SCRIPT", json.dumps([say("from outside")]))
    assert said(ask("env:MY_SCRIPT")) == "from outside"
    mine = ScriptedProvider({"mine": [say("my own")]})
    assert text_of(reply(ask("mine"), mine).parts) == "my own"
    for model in ("nobody", "env:NOT_SET", "file:/nowhere/at.all"):
        assert failure(ask(model)).failure.kind == "config"
        assert PROVIDER.profile(model).context_limit == 200_000
    monkeypatch.setenv("MY_SECRET", "s3cr3t")
    assert "s3cr3t" not in str(failure(ask("env:MY_SECRET")).failure)


def test_it_is_known_as_scripted() -> None:
    provider, model = provider_for("scripted:echo")
    assert (type(provider), provider.name, model) == (ScriptedProvider, "scripted", "echo")
    anyio.run(provider.aclose)


@pytest.mark.parametrize("name", LIBRARY)
def test_the_library_is_valid_and_its_tools_exist(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Play a whole turn with the example tools, as the demo does."""

    async def at_once(_seconds: float) -> None: ...

    Script.model_validate(LIBRARY[name])
    if name in ("hang", "agents-demo"):  # it has no end; it needs chats (test_agents plays it)
        return
    monkeypatch.setattr(anyio, "sleep", at_once)
    talk = [user("umbrellas")]
    for _ in range(9):
        ended = reply(ModelRequest(name, tuple(talk)))
        asked = [part for part in ended.parts if isinstance(part, ToolCall)]
        if not asked:
            break
        found = []
        for wanted in asked:
            example = getattr(examples, wanted.name)
            assert isinstance(example, FunctionTool)
            done = run_tool(example, **wanted.arguments)
            assert not done.is_error, done.content
            found.append(ToolResult(wanted.call_id, done.content))
        talk += [PromptMessage(Role.ASSISTANT, ended.parts), PromptMessage(Role.TOOL, tuple(found))]
    assert ended.stop is StopReason.END
    assert "(no result)" not in text_of(ended.parts)


@given(st.text(), st.none() | st.integers(1, 9))
def test_chunks_add_up(text: str, size: int | None) -> None:
    assert "".join(chunks(text, size)) == text
