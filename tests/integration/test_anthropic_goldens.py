"""Recorded conversations: given the same answers and results, our next request is the recorded one.

The provider talks to the replay server; what it sends is compared with what must be sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from anyio.from_thread import start_blocking_portal

from rejoinder.core.messages import Role
from rejoinder.core.model import ModelRequest, Options, PromptMessage, Reply, ToolSpec
from rejoinder.core.parts import ToolResult, open_calls
from rejoinder.core.prompt import assemble
from rejoinder.providers.anthropic import AnthropicProvider
from rejoinder.testing.conformance import check_answer, collect
from tests.integration.recorded import (
    goldens,
    needs_recordings,
    open_files,
    replaying,
    user_parts,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anyio.from_thread import BlockingPortal

pytestmark = [needs_recordings, open_files]

# Named by us, or added by the replaying client itself.
NOT_EXTRA = {"model", "max_tokens", "messages", "system", "tools", "thinking", "temperature"}
NOT_EXTRA |= {"stream", "anthropic_version"}


@pytest.fixture(scope="module")
def portal() -> Iterator[BlockingPortal]:
    with start_blocking_portal() as portal:
        yield portal


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    with replaying() as server:
        yield server


@pytest.fixture(scope="module")
def provider(portal: BlockingPortal, server: Any) -> Iterator[AnthropicProvider]:
    provider = AnthropicProvider(api_key="none", base_url=server.base_url)
    yield provider
    portal.call(provider.aclose)


def options_of(first: dict[str, Any]) -> Options:
    theirs = [tool for tool in first.get("tools", ()) if "input_schema" not in tool]
    extra = {name: value for name, value in first.items() if name not in NOT_EXTRA}
    return Options(
        max_tokens=first["max_tokens"],
        temperature=first.get("temperature"),
        thinking=first.get("thinking"),
        extra={**extra, **({"tools": theirs} if theirs else {})},
    )


def tools_of(first: dict[str, Any]) -> tuple[ToolSpec, ...]:
    return tuple(
        ToolSpec(tool["name"], tool.get("description", ""), tool["input_schema"])
        for tool in first.get("tools", ())
        if "input_schema" in tool
    )


def system_of(first: dict[str, Any]) -> list[PromptMessage]:
    system = first.get("system")
    return [PromptMessage(Role.SYSTEM, user_parts(system))] if system else []


def said_next(step: dict[str, Any], reply: Reply, model: str) -> list[PromptMessage]:
    """The answer, the recorded results of its calls, and what the user said next."""
    spoken = PromptMessage(
        Role.ASSISTANT, reply.parts, model=f"anthropic:{model}", stop=reply.stop.value
    )
    said = [spoken]
    if results := step.get("tool_results"):
        given = tuple(
            ToolResult(r["tool_use_id"], r.get("content", ""), is_error=bool(r.get("is_error")))
            for r in results
        )
        assert {call.call_id for call in open_calls(reply.parts)} == {g.call_id for g in given}
        said.append(PromptMessage(Role.TOOL, given[::-1]))  # the order of history is not theirs
    if others := step.get("other_user_blocks"):
        said.append(PromptMessage(Role.USER, user_parts(others)))
    return said


@pytest.mark.parametrize("name", sorted(goldens()))
def test_the_next_request_is_the_recorded_one(
    portal: BlockingPortal, server: Any, provider: AnthropicProvider, name: str
) -> None:
    golden = goldens()[name]
    first = golden["first_request"]
    model = first.get("model") or golden["model"] or "claude-sonnet-5"
    server.reset()
    server.script([{"golden": name, "options": {"chunking": "random", "seed": 7}}])
    history = [
        *system_of(first),
        *(PromptMessage(Role(m["role"]), user_parts(m["content"])) for m in first["messages"]),
    ]
    for step in golden["steps"]:
        prompt = assemble(history, "anthropic", model=model, caching=True)
        request = ModelRequest(model, prompt, tools_of(first), options_of(first))
        reply = check_answer(portal.call(collect, provider.stream(request)))
        if reply.cut and step.get("tool_results"):
            break  # the recorded client answered a call that was cut off; we never run one
        history += said_next(step, reply, model)
    else:
        assert len(server.report) == len(golden["steps"])
    assert [found for found in server.report if found["errors"] or found["warnings"]] == []
