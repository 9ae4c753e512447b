"""Every recorded answer of the real API, through the real SDK, over a real socket."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anthropic
import pytest
from anyio.from_thread import start_blocking_portal

from rejoinder.core.model import StopReason
from rejoinder.core.parts import ToolCall, open_calls
from rejoinder.providers.anthropic import AnthropicProvider
from rejoinder.providers.anthropic_blocks import block_of
from rejoinder.testing.conformance import check_answer, check_failure, collect
from tests.integration.recorded import (
    asking,
    ids,
    needs_recordings,
    open_files,
    recording,
    replay,
    replaying,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anyio.from_thread import BlockingPortal

    from rejoinder.core.model import Reply, StreamItem
    from rejoinder.providers.errors import ProviderError

pytestmark = [needs_recordings, open_files]

CUTS = {"max_tokens", "model_context_window_exceeded", "refusal"}


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


class Replayed:
    """Plays a recording to the provider."""

    def __init__(self, portal: BlockingPortal, server: Any, provider: AnthropicProvider) -> None:
        self._portal, self._server, self._provider = portal, server, provider

    def items(self, name: str, **options: Any) -> list[StreamItem]:
        self._script(name, options)
        return self._portal.call(collect, self._provider.stream(asking()))

    def failure(self, name: str, **options: Any) -> ProviderError:
        self._script(name, options)
        return self._portal.call(check_failure, self._provider.stream(asking()))

    def _script(self, name: str, options: dict[str, Any]) -> None:
        self._server.reset()
        shape = {"chunking": "random", "seed": len(name) + sum(map(ord, name)), **options}
        self._server.script([{"recording": name, "options": shape}])


@pytest.fixture
def replayed(portal: BlockingPortal, server: Any, provider: AnthropicProvider) -> Replayed:
    return Replayed(portal, server, provider)


def recorded_message(name: str) -> dict[str, Any]:
    found = recording(name)
    message: dict[str, Any] = replay().assemble(found) if found["kind"] == "sse" else found["body"]
    return message


def was_ended(name: str) -> bool:
    found = recording(name)
    return found["kind"] == "json" or any(
        event["data"].get("type") == "message_stop" for event in found["sse_events"]
    )


def plain(value: Any) -> Any:
    """JSON without its nulls: they say nothing."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items() if v is not None}
    return [plain(v) for v in value] if isinstance(value, list) else value


def check_content(reply: Reply, message: dict[str, Any]) -> None:
    """The parts, as they would be sent back, are what the API sent."""
    expected = message["content"]
    if reply.cut:
        assert message["stop_reason"] in CUTS
        assert expected[-1]["type"].endswith("tool_use")
        expected = expected[:-1]
    assert len(reply.parts) == len(expected)
    for part, block in zip(reply.parts, expected, strict=True):
        sent = block_of(part)
        if sent is None:
            assert_left_out(part, block)
        else:
            assert plain(sent) == plain(block)


def assert_left_out(part: Any, block: dict[str, Any]) -> None:
    """Unsigned thinking, and calls of code on the server that has ended, do not go back."""
    if block["type"] == "thinking":
        assert not block["signature"]
        assert part.text == block["thinking"]
    else:
        assert part.provider_executed
        assert block["caller"]["tool_id"]
        assert (part.call_id, part.name) == (block["id"], block["name"])


def check_whole(reply: Reply, message: dict[str, Any]) -> None:
    check_content(reply, message)
    assert reply.extra["stop_reason"] == message["stop_reason"]
    assert reply.model == message["model"]
    usage = message["usage"]
    assert reply.usage.input_tokens == usage.get("input_tokens")
    assert reply.usage.output_tokens == usage.get("output_tokens")
    assert reply.usage.cache_read_tokens == usage.get("cache_read_input_tokens")
    assert reply.usage.cache_write_tokens == usage.get("cache_creation_input_tokens")


@pytest.mark.parametrize("name", [n for n in ids("sse", "json") if was_ended(n)])
def test_an_answer_gives_the_recorded_content(replayed: Replayed, name: str) -> None:
    reply = check_answer(replayed.items(name))
    check_whole(reply, recorded_message(name))
    if reply.stop is StopReason.TOOL_USE:
        assert open_calls(reply.parts)
    if reply.extra["stop_reason"] in CUTS:
        assert not reply.parts or not isinstance(reply.parts[-1], ToolCall)


@pytest.mark.parametrize("name", ids("json"))
def test_an_answer_at_once_instead_of_a_stream_is_as_good(replayed: Replayed, name: str) -> None:
    check_whole(check_answer(replayed.items(name, adapt=False)), recorded_message(name))


@pytest.mark.parametrize("name", [n for n in ids("sse") if not was_ended(n)])
def test_a_recorded_cut_stream_is_a_failure_to_be_tried_again(
    replayed: Replayed, name: str
) -> None:
    assert replayed.failure(name).failure.retryable


ERRORS = {
    "model:": "config",
    "prompt is too long": "context_length",
    "exceeded your rate limit": "rate_limit",
    "": "config",
}


@pytest.mark.parametrize("name", ids("error"))
def test_a_recorded_error_is_classified(replayed: Replayed, name: str) -> None:
    error = replayed.failure(name)
    body = recording(name)["body"]
    said = body["error"]["message"]
    assert error.failure.kind == next(kind for text, kind in ERRORS.items() if text in said)
    assert error.failure.retryable == (error.failure.kind == "rate_limit")
    assert error.failure.status_code == recording(name)["status"]
    assert error.failure.detail
    assert "://" not in error.failure.detail


@pytest.mark.parametrize("name", [n for n in ids("sse") if was_ended(n)][::9])
@pytest.mark.parametrize(
    "shape",
    [
        {"crlf": True},
        {"gzip": True},
        {"no_event_lines": True},
        {"no_final_blank": True},
        {"pings": 1, "comments": 2},
        {"max_chunk": 3},
        {"chunking": "whole"},
    ],
    ids="-".join,
)
def test_the_shape_of_the_bytes_does_not_matter(
    replayed: Replayed, name: str, shape: dict[str, Any]
) -> None:
    check_whole(check_answer(replayed.items(name, **shape)), recorded_message(name))


@pytest.mark.parametrize("name", [n for n in ids("sse") if was_ended(n)][::12])
@pytest.mark.parametrize("how", ["clean", "close", "reset"])
def test_an_answer_cut_anywhere_is_a_failure_to_be_tried_again(
    replayed: Replayed, name: str, how: str
) -> None:
    events = len(recording(name)["sse_events"])
    for cut in {0, 1, events // 2, events - 2, events - 1}:
        error = replayed.failure(name, truncate={"event": cut, "how": how}, chunking="event")
        assert error.failure.kind == "timeout"
        assert error.failure.retryable
    for share in (0.3, 0.77):
        assert replayed.failure(name, truncate={"fraction": share, "how": how}).failure.retryable


def sdk_can_read(name: str) -> bool:
    """The SDK itself fails on an answer whose end says nothing of its cost."""
    deltas = [
        event["data"]
        for event in recording(name)["sse_events"]
        if event["data"].get("type") == "message_delta"
    ]
    return was_ended(name) and all(delta.get("usage") for delta in deltas)


@pytest.mark.parametrize("name", [n for n in ids("sse") if sdk_can_read(n)][::4])
def test_the_sdk_agrees(replayed: Replayed, server: Any, name: str) -> None:
    reply = check_answer(replayed.items(name))
    if reply.cut:
        return  # the SDK fills in what was cut off; never run, and so not ours
    server.script([{"recording": name, "options": {}}])
    client = anthropic.Anthropic(api_key="none", base_url=server.base_url, max_retries=0)
    with (
        client,
        client.beta.messages.stream(
            model="claude-sonnet-5", max_tokens=9, messages=[{"role": "user", "content": "Hello"}]
        ) as stream,
    ):
        message = json.loads(stream.get_final_message().to_json())
    check_whole(reply, message)
