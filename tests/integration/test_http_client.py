"""The HTTP client as the Anthropic provider makes it: TLS, proxies, and what failures count as."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from rejoinder.core.messages import Role
from rejoinder.core.model import ModelRequest, PromptMessage
from rejoinder.core.parts import Text
from rejoinder.providers import close_all, forget_all, provider_for
from rejoinder.providers.anthropic import AnthropicProvider
from rejoinder.providers.errors import ProviderError
from rejoinder.testing.conformance import check_answer, check_failure, collect
from tests.integration.listening import OK, Peer, certificate, each_time, listening
from tests.integration.recorded import asking
from tests.integration.sse import HELLO

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
    from pathlib import Path

    from rejoinder.core.model import Reply

ASK = asking()
LONG = ModelRequest(ASK.model, (PromptMessage(Role.USER, (Text("x" * 8_000_000),)),))
EVENTS = b"content-type: text/event-stream\r\n"
ANSWER = OK + EVENTS + b"content-length: %d\r\n\r\n" % len(HELLO) + HELLO
CHUNKS = OK + EVENTS + b"transfer-encoding: chunked\r\n\r\n"
RATE = b'{"type": "error", "error": {"type": "rate_limit_error", "message": "Slow down"}}'
TOO_MANY = b"HTTP/1.1 429 No\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(
    RATE
)
STREAMS = 150
"""More at once than the HTTP library would have by itself."""


async def once(peer: Peer) -> None:
    await peer.request()
    await peer.say(ANSWER)


def run(scenario: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 60))


@asynccontextmanager
async def asking_at(url: str, key: str = "none") -> AsyncIterator[AnthropicProvider]:
    provider = AnthropicProvider(api_key=key, base_url=url)
    try:
        yield provider
    finally:
        await provider.aclose()


async def answered(url: str) -> Reply:
    async with asking_at(url) as provider:
        return check_answer(await collect(provider.stream(ASK)))


async def verdict(url: str, key: str = "none", request: ModelRequest = ASK) -> tuple[str, bool]:
    async with asking_at(url, key) as provider:
        error = await check_failure(provider.stream(request))
        return error.failure.kind, error.failure.retryable


async def reset(peer: Peer) -> None:
    raw = peer.writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.writer.transport.abort()


def test_a_certificate_counts_if_its_authority_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, key = certificate(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(made, key)

    async def scenario() -> None:
        async with listening(once, tls) as server:
            with pytest.raises(ProviderError) as caught:
                await answered(server.url)
            assert caught.value.failure.kind == "config", "trying again cannot help"
            monkeypatch.setenv("SSL_CERT_FILE", str(made))
            assert (await answered(server.url)).stop == "end"

    run(scenario())


def test_a_server_that_does_not_greet_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rejoinder.providers.anthropic.TIMEOUT", 0.3)

    async def scenario() -> None:
        async with listening(Peer.until_left) as server:
            with pytest.raises(ProviderError) as caught:
                await answered(server.url.replace("http:", "https:"))
            assert caught.value.failure.kind == "timeout"
            await asyncio.wait_for(server.left.wait(), 10)

    run(scenario())


@pytest.mark.parametrize("name", ["HTTP_PROXY", "ALL_PROXY"])
def test_a_proxy_of_the_environment_is_used(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    async def proxy(peer: Peer) -> None:
        asked.append((await peer.request())[0])
        await peer.say(ANSWER)

    async def scenario() -> None:
        async with listening(proxy) as server:
            monkeypatch.setenv(name, server.url)
            assert (await answered("http://api.invalid")).stop == "end"
        assert asked[0].startswith(b"POST http://api.invalid/v1/messages ")

    run(scenario())


def test_hosts_beside_the_proxy_are_reached_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with listening(once) as server:
            monkeypatch.setenv("HTTP_PROXY", "http://proxy.invalid")
            monkeypatch.setenv("NO_PROXY", "127.0.0.1")
            assert (await answered(server.url)).stop == "end"

    run(scenario())


def test_credentials_that_only_the_sdk_itself_finds_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    token = tmp_path / "token"
    token.write_text("who I am")
    monkeypatch.setenv("ANTHROPIC_IDENTITY_TOKEN_FILE", str(token))
    monkeypatch.setenv("ANTHROPIC_FEDERATION_RULE_ID", "rule")
    monkeypatch.setenv("ANTHROPIC_ORGANIZATION_ID", "organization")
    monkeypatch.setenv("ANTHROPIC_CONFIG_DIR", str(tmp_path))

    async def scenario() -> None:
        provider = AnthropicProvider()
        assert provider._connected().credentials is not None
        await provider.aclose()

    run(scenario())


@pytest.mark.parametrize(
    "answer", [ANSWER, CHUNKS + b"%x\r\n%b\r\n0\r\n\r\n" % (len(HELLO), HELLO), TOO_MANY + RATE]
)
def test_a_connection_is_used_again_after_a_complete_answer(answer: bytes) -> None:
    async def scenario() -> None:
        async with (
            listening(lambda peer: each_time(peer, answer)) as server,
            asking_at(server.url) as provider,
        ):
            for _ in range(3):
                with contextlib.suppress(ProviderError):
                    await collect(provider.stream(ASK))
            assert len(server.peers) == 1

    run(scenario())


def test_a_connection_that_the_server_closed_meanwhile_is_not_used() -> None:
    async def scenario() -> None:
        async def once_and_no_more(peer: Peer) -> None:
            await once(peer)
            peer.writer.write_eof()
            await peer.until_left()

        async with listening(once_and_no_more) as server, asking_at(server.url) as provider:
            for count in range(1, 6):
                check_answer(await collect(provider.stream(ASK)))
                assert len(server.peers) == count
                await asyncio.wait_for(server.left.wait(), 10)  # the client has heard of it
                server.left.clear()

    run(scenario())


def test_hundreds_of_streams_are_open_at_once() -> None:
    async def scenario() -> None:
        everybody = asyncio.Barrier(STREAMS)

        async def together(peer: Peer) -> None:
            await peer.request()
            await everybody.wait()
            await peer.say(ANSWER)

        async with listening(together) as server, asking_at(server.url) as provider:
            answers = await asyncio.gather(*(collect(provider.stream(ASK)) for _ in range(STREAMS)))
            assert [check_answer(items).stop for items in answers] == ["end"] * STREAMS

    run(scenario())


@pytest.mark.parametrize("said", [b"", CHUNKS, CHUNKS + b"5\r\nevent\r\n", CHUNKS + b"5\r\nev"])
@pytest.mark.parametrize("leave", [None, reset])
def test_a_server_that_leaves_is_tried_again(
    said: bytes, leave: Callable[[Peer], Awaitable[None]] | None
) -> None:
    async def scenario() -> None:
        async def speak(peer: Peer) -> None:
            await peer.request()
            await peer.say(said)
            if leave is not None:
                await leave(peer)

        async with listening(speak) as server:
            assert await verdict(server.url) == ("timeout", True)

    run(scenario())


@pytest.mark.parametrize("said", [b"SSH-2.0\r\n\r\n", CHUNKS + b"?\r\n", ANSWER[:-1]])
def test_an_answer_that_is_no_http_is_tried_again(said: bytes) -> None:
    async def scenario() -> None:
        async def speak(peer: Peer) -> None:
            await peer.request()
            await peer.say(said)

        async with listening(speak) as server:
            assert await verdict(server.url) == ("timeout", True)

    run(scenario())


@pytest.mark.parametrize("said", [b"", CHUNKS, CHUNKS + b"5\r\nevent\r\n"])
def test_a_line_that_is_dead_times_out(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rejoinder.providers.anthropic.TIMEOUT", 0.3)

    async def scenario() -> None:
        async def speak(peer: Peer) -> None:
            await peer.request()
            await peer.say(said)
            await peer.until_left()

        async with listening(speak) as server:
            assert await verdict(server.url) == ("timeout", True)
            await asyncio.wait_for(server.left.wait(), 10)

    run(scenario())


@pytest.mark.parametrize("said", [b"", CHUNKS, CHUNKS + b"5\r\nevent\r\n"])
def test_whoever_is_cancelled_closes_the_connection(said: bytes) -> None:
    async def scenario() -> None:
        async def half(peer: Peer) -> None:
            await peer.request()
            await peer.say(said)
            heard.set()
            await peer.until_left()

        heard = asyncio.Event()
        async with listening(half) as server, asking_at(server.url) as provider:
            asked = asyncio.create_task(collect(provider.stream(ASK)))
            await heard.wait()
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            await asyncio.wait_for(server.left.wait(), 10)

    run(scenario())


@pytest.mark.parametrize("key", ["sk-ant\n", "with\ranother: line", "nothing\0"])
def test_a_key_that_cannot_be_sent_is_not_tried_again(key: str) -> None:
    async def scenario() -> None:
        async with listening(once) as server:
            assert await verdict(server.url, key) == ("config", False)

    run(scenario())


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/", "nowhere", "http://127.0.0.1:99999"])
def test_an_address_that_is_none_is_not_tried_again(url: str) -> None:
    async def scenario() -> None:
        assert await verdict(url) == ("config", False)

    run(scenario())


@pytest.mark.filterwarnings("ignore:Sending a large body")
def test_a_refusal_is_read_although_the_request_was_not() -> None:
    async def scenario() -> None:
        async def refuse(peer: Peer) -> None:
            await peer.reader.readuntil(b"\r\n\r\n")
            await peer.say(b"HTTP/1.1 413 Too long\r\ncontent-length: 2\r\n\r\n{}")
            await gone.wait()

        gone = asyncio.Event()
        async with listening(refuse) as server:
            assert await verdict(server.url, request=LONG) == ("context_length", False)
            gone.set()

    run(scenario())


@pytest.mark.filterwarnings("ignore:Sending a large body")
def test_a_server_that_reads_nothing_is_silent() -> None:
    async def scenario() -> None:
        async def deaf(_: Peer) -> None:
            await gone.wait()

        gone = asyncio.Event()
        async with listening(deaf) as server, asking_at(server.url) as provider:
            with pytest.raises(ProviderError) as caught:
                await collect(provider.stream(LONG), silence=0.5)
            assert caught.value.failure.kind == "stream_silence"
            gone.set()

    run(scenario())


def test_closing_all_providers_closes_their_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with listening(lambda peer: each_time(peer, ANSWER)) as server:
            monkeypatch.setenv("ANTHROPIC_API_KEY", "none")
            monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
            provider, _ = provider_for("anthropic:claude-sonnet-5")
            check_answer(await collect(provider.stream(ASK)))
            await close_all()
            await asyncio.wait_for(server.left.wait(), 10)
            assert provider_for("anthropic:claude-sonnet-5")[0] is not provider
            forget_all()

    run(scenario())
