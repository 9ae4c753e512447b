"""The Anthropic provider through the real SDK: what the recordings do not hold."""

from __future__ import annotations

import contextlib
import gzip
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from rejoinder.core.messages import Role
from rejoinder.core.model import (
    ModelRequest,
    Options,
    PartDone,
    PromptMessage,
    StopReason,
    TextDelta,
    ToolSpec,
)
from rejoinder.core.parts import ProviderBlock, Reasoning, Text, ToolCall
from rejoinder.providers import provider_for, register
from rejoinder.providers.anthropic import AnthropicProvider
from rejoinder.providers.errors import ProviderError
from rejoinder.testing.conformance import check_answer, check_failure, collect
from tests.integration.sse import HELLO, USAGE, block, call, end, event, serving, start, text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rejoinder.core.model import Batch, Reply, StreamItem
    from tests.integration.sse import Connection, Server

ASK = ModelRequest("claude-sonnet-5", (PromptMessage(Role.USER, (Text("Hello"),)),))


def answered(data: bytes, request: ModelRequest = ASK, **headers: str) -> tuple[Reply, Server]:
    """The reply to a stream of these bytes."""

    async def scenario() -> tuple[Reply, Server]:
        async def answer(connection: Connection) -> None:
            await connection.begin(200, **headers)
            await connection.send(data)

        async with serving(answer) as server:
            provider = AnthropicProvider(api_key="sk-ant-secret", base_url=server.url)
            try:
                return check_answer(await collect(provider.stream(request))), server
            finally:
                await provider.aclose()

    return anyio.run(scenario)


def failed(answer: Callable[[Connection], Awaitable[None]]) -> ProviderError:
    """The error that comes of such an answer."""

    async def scenario() -> ProviderError:
        async with serving(answer) as server:
            provider = AnthropicProvider(api_key="sk-ant-secret", base_url=server.url)
            try:
                return await check_failure(provider.stream(ASK))
            finally:
                await provider.aclose()

    return anyio.run(scenario)


def refused(status: int, body: Any, **headers: str) -> ProviderError:
    async def answer(connection: Connection) -> None:
        await connection.refuse(status, body, **headers)

    return failed(answer)


def said(kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}}


def test_words_and_what_they_cost() -> None:
    reply, _ = answered(start() + text(0, "Hel", "lo") + end(input_tokens=12))
    assert reply.parts == (Text("Hello"),)
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (12, 5)
    assert (reply.stop, reply.model) == (StopReason.END, "claude-sonnet-5")
    assert reply.request_id == "req_1"


def test_an_answer_in_gzip() -> None:
    reply, _ = answered(gzip.compress(HELLO), content_encoding="gzip")
    assert reply.parts == (Text("Hello"),)


def test_parallel_calls_one_without_arguments() -> None:
    data = start() + call(0, "t1", '{"a"', ': "\\', 'u00e9"}') + call(1, "t2") + end("tool_use")
    reply, _ = answered(data)
    assert reply.parts == (ToolCall("t1", "add", {"a": "é"}), ToolCall("t2", "add", {}))


@pytest.mark.parametrize("pieces", [('{"a": 1',), ('{"a": 1}',), ()])
def test_a_call_at_the_output_limit_is_not_kept_but_what_came_before_is(
    pieces: tuple[str, ...],
) -> None:
    data = start() + text(0, "So: ") + call(1, "t1", "{}") + call(2, "t2", *pieces)
    reply, _ = answered(data + end("max_tokens"))
    assert reply.parts == (Text("So: "), ToolCall("t1", "add", {}))
    assert [type(part) for part in reply.cut] == [ToolCall]
    assert reply.stop is StopReason.MAX_TOKENS


@pytest.mark.parametrize("broken", ['{"a": ', "[1]", "7"])
def test_arguments_that_are_no_object_fit_no_tool(broken: str) -> None:
    reply, _ = answered(start() + call(0, "t1", broken) + end("tool_use"))
    assert reply.parts == (ToolCall("t1", "add", {"INVALID_JSON": broken}),)


def test_thinking_keeps_its_signature_and_redacted_thinking_its_data() -> None:
    thinking = {"type": "thinking", "thinking": "", "signature": ""}
    data = start() + block(
        0,
        thinking,
        {"type": "thinking_delta", "thinking": "Hm"},
        {"type": "signature_delta", "signature": "first"},
        {"type": "signature_delta", "signature": "last"},
    )
    data += block(1, {"type": "redacted_thinking", "data": "zzz"}) + text(2, "Yes") + end()
    reply, _ = answered(data)
    redacted = Reasoning("", "zzz", {"type": "redacted_thinking"})
    assert reply.parts == (Reasoning("Hm", "last"), redacted, Text("Yes"))


def test_what_nobody_knows_yet_is_kept() -> None:
    novel: dict[str, Any] = {"type": "hologram", "layers": [1, None], "of": {"x": 1}}
    data = start() + block(0, novel, {"type": "hologram_delta", "light": "on"})
    data += block(1, {"type": "text", "text": "Hi", "mood": "gay"}) + end("bored")
    reply, _ = answered(data)
    assert reply.parts == (
        ProviderBlock("anthropic", {**novel, "light": "on"}),
        Text("Hi", {"mood": "gay"}),
    )
    assert reply.stop is StopReason.END
    assert reply.extra["stop_reason"] == "bored"


def test_an_answer_that_comes_whole_in_its_first_event() -> None:
    content = [
        {"type": "text", "text": "Hi"},
        {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}},
    ]
    data = start(content=content, stop_reason="tool_use") + event({"type": "message_stop"})
    reply, _ = answered(data)
    assert reply.parts == (Text("Hi"), ToolCall("t1", "add", {"a": 1}))
    assert reply.usage.input_tokens == USAGE["input_tokens"]


@pytest.mark.parametrize(
    ("reason", "stop"),
    [
        ("pause_turn", StopReason.PAUSE),
        ("refusal", StopReason.REFUSAL),
        ("model_context_window_exceeded", StopReason.CONTEXT_LENGTH),
        ("stop_sequence", StopReason.STOP_SEQUENCE),
    ],
)
def test_reasons_to_stop(reason: str, stop: StopReason) -> None:
    assert answered(start() + text(0, "Well") + end(reason))[0].stop is stop


def test_an_answer_without_content_is_an_answer() -> None:
    assert answered(start() + end())[0].parts == ()


def test_a_tool_is_found_by_its_own_name_whatever_the_api_allows() -> None:
    request = ModelRequest(ASK.model, ASK.messages, (ToolSpec("bank.pay", "Pays.", {}),))
    wire = {"type": "tool_use", "id": "t1", "input": {}}

    async def scenario() -> Reply:
        async def answer(connection: Connection) -> None:
            name = connection.request["tools"][0]["name"]
            assert "." not in name
            await connection.begin()
            await connection.send(start() + block(0, {**wire, "name": name}) + end("tool_use"))

        async with serving(answer) as server:
            provider = AnthropicProvider(api_key="none", base_url=server.url)
            try:
                return check_answer(await collect(provider.stream(request)))
            finally:
                await provider.aclose()

    assert anyio.run(scenario).parts == (ToolCall("t1", "bank.pay", {}),)


def test_what_is_sent() -> None:
    options = Options(temperature=0.5, extra={"betas": ["a-1", "b-2"], "top_k": 3})
    _, server = answered(HELLO, ModelRequest("claude-sonnet-5", ASK.messages, (), options))
    body = server.requests[0]
    assert body["max_tokens"] == 32_000
    assert (body["temperature"], body["top_k"], body["stream"]) == (0.5, 3, True)
    assert server.headers[0]["anthropic-beta"] == "a-1,b-2"
    assert "betas" not in body


@pytest.mark.parametrize("wait", ["7", "7.0"])
def test_a_rate_limit_says_how_long_to_wait(wait: str) -> None:
    error = refused(429, said("rate_limit_error", "Slow down"), retry_after=wait)
    assert (error.failure.kind, error.failure.retryable) == ("rate_limit", True)
    assert error.retry_after == 7.0
    assert error.failure.request_id == "req_1"


def test_a_rate_limit_that_no_wait_can_help() -> None:
    body = said("rate_limit_error", "This request is larger than your limit")
    error = refused(429, body, x_should_retry="false")
    assert (error.failure.kind, error.failure.retryable) == ("rate_limit", False)


def test_an_overloaded_provider() -> None:
    error = refused(529, said("overloaded_error", "Overloaded"))
    assert (error.failure.kind, error.failure.retryable) == ("overloaded", True)
    assert error.failure.status_code == 529


def test_a_web_page_of_some_proxy_is_not_shown() -> None:
    error = refused(502, b"<html><body>Bad gateway</body></html>", content_type="text/html")
    assert (error.failure.kind, error.failure.retryable) == ("timeout", True)
    assert error.failure.detail is None


def test_a_web_page_instead_of_a_stream_is_a_wrong_address() -> None:
    error = refused(200, b"<html>Welcome</html>", content_type="text/html")
    assert (error.failure.kind, error.failure.retryable) == ("config", False)
    assert "ANTHROPIC_BASE_URL" in error.failure.message


@pytest.mark.parametrize(
    ("kind", "found", "retryable"),
    [
        ("overloaded_error", "overloaded", True),
        ("api_error", "generic", True),
        ("rate_limit_error", "rate_limit", True),
        ("invalid_request_error", "config", False),
        ("something_new", "generic", True),
    ],
)
def test_an_error_in_the_middle_of_a_good_response(
    kind: str, found: str, *, retryable: bool
) -> None:
    async def answer(connection: Connection) -> None:
        await connection.begin()
        await connection.send(start() + text(0, "Hel") + event(said(kind, "Oh")))

    error = failed(answer)
    assert (error.failure.kind, error.failure.retryable) == (found, retryable)
    assert error.failure.detail == "Oh"


@pytest.mark.parametrize(
    "last",
    [event(said("api_error", "Oh")), b"event: x\ndata: {\n\n", event({"type": "message_stop"})],
)
def test_what_came_with_a_failure_was_said_before_it(last: bytes) -> None:
    async def scenario() -> list[StreamItem]:
        async def answer(connection: Connection) -> None:
            await connection.begin()
            await connection.send(start() + text(0, "Hel", "lo") + last)

        items: list[StreamItem] = []
        async with serving(answer) as server:
            provider = AnthropicProvider(api_key="none", base_url=server.url)
            with contextlib.suppress(ProviderError):
                async for batch in provider.stream(ASK):
                    items += batch
                pytest.fail("it did not fail")
            await provider.aclose()
        return items

    _, *words, done = anyio.run(scenario)
    assert sum(item.count for item in words if isinstance(item, TextDelta)) == 2
    assert done == PartDone(0, Text("Hello"))


async def _reset(connection: Connection) -> None:
    await connection.begin()
    await connection.send(start() + text(0, "Hel"))
    connection.reset()


async def _reset_at_once(connection: Connection) -> None:
    connection.reset()


async def _cut(connection: Connection) -> None:
    await connection.begin()
    await connection.send(HELLO[: len(HELLO) // 2])


async def _without_reason(connection: Connection) -> None:
    await connection.begin()
    await connection.send(start() + text(0, "Hel") + end(None))


async def _nonsense(connection: Connection) -> None:
    await connection.begin()
    await connection.send(start() + b'event: x\ndata: {"type": \n\n')


async def _orphan(connection: Connection) -> None:
    await connection.begin()
    delta = {"type": "text_delta", "text": "?"}
    await connection.send(
        start() + event({"type": "content_block_delta", "index": 4, "delta": delta}) + end()
    )


@pytest.mark.parametrize(
    "answer", [_reset, _reset_at_once, _cut, _without_reason, _nonsense, _orphan]
)
def test_a_broken_answer_is_the_providers_fault_and_is_tried_again(
    answer: Callable[[Connection], Awaitable[None]],
) -> None:
    error = failed(answer)
    assert (error.failure.kind, error.failure.retryable) == ("timeout", True)


def test_nobody_listens_there() -> None:
    async def scenario() -> ProviderError:
        async with serving(_cut) as server:
            pass  # its port is free again
        provider = AnthropicProvider(api_key="none", base_url=server.url)
        try:
            return await check_failure(provider.stream(ASK))
        finally:
            await provider.aclose()

    error = anyio.run(scenario)
    assert (error.failure.kind, error.failure.retryable) == ("timeout", True)


def test_pings_are_signs_of_life() -> None:
    async def scenario() -> list[Batch]:
        heard = anyio.Event()

        async def answer(connection: Connection) -> None:
            await connection.begin()
            await connection.send(event({"type": "ping"}) * 3 + HELLO[:20])
            await heard.wait()
            await connection.send(HELLO[20:])

        async with serving(answer) as server:
            provider = AnthropicProvider(api_key="none", base_url=server.url)
            batches = []
            async for batch in provider.stream(ASK):
                batches.append(batch)
                heard.set()
            await provider.aclose()
            return batches

    first, *others = anyio.run(scenario)
    assert first == []
    assert all(others)


def test_without_a_key_the_failure_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ANTHROPIC_CONFIG_DIR", "/nonexistent")
    error = anyio.run(lambda: check_failure(AnthropicProvider().stream(ASK)))
    assert (error.failure.kind, error.failure.retryable) == ("missing_key", False)
    assert "ANTHROPIC_API_KEY" in error.failure.message


def test_the_environment_says_where_and_with_what(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> Server:
        async def answer(connection: Connection) -> None:
            await connection.begin()
            await connection.send(HELLO)

        async with serving(answer) as server:
            monkeypatch.setenv("ANTHROPIC_API_KEY", "from-outside")
            monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
            register("anthropic", AnthropicProvider)
            provider, model = provider_for("anthropic:claude-sonnet-5")
            request = ModelRequest(model, ASK.messages)
            check_answer(await collect(provider.stream(request)))
            await provider.aclose()
            return server

    server = anyio.run(scenario)
    assert "from-outside" in str(server.headers[0])
