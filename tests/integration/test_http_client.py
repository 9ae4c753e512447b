"""The HTTP client as the Anthropic provider makes it: TLS, proxies, and what failures count as."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING

import pytest

from rejoinder.core.model import Reply
from rejoinder.providers.anthropic import AnthropicProvider
from rejoinder.providers.errors import ProviderError
from rejoinder.testing.conformance import collect
from tests.integration.listening import OK, Peer, certificate, listening
from tests.integration.recorded import asking
from tests.integration.sse import HELLO

if TYPE_CHECKING:
    from pathlib import Path

ASK = asking()
ANSWER = OK + b"content-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(HELLO) + HELLO


async def once(peer: Peer) -> None:
    await peer.request()
    await peer.say(ANSWER)


async def answered(url: str) -> Reply:
    provider = AnthropicProvider(api_key="none", base_url=url)
    try:
        items = await collect(provider.stream(ASK))
    finally:
        await provider.aclose()
    assert isinstance(items[-1], Reply)
    return items[-1]


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

    asyncio.run(scenario())


def test_a_server_that_does_not_greet_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rejoinder.providers.anthropic.TIMEOUT", 0.3)

    async def scenario() -> None:
        async with listening(Peer.until_left) as server:
            with pytest.raises(ProviderError) as caught:
                await answered(server.url.replace("http:", "https:"))
            assert caught.value.failure.kind == "timeout"
            await asyncio.wait_for(server.left.wait(), 10)

    asyncio.run(scenario())


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

    asyncio.run(scenario())


def test_hosts_beside_the_proxy_are_reached_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with listening(once) as server:
            monkeypatch.setenv("HTTP_PROXY", "http://proxy.invalid")
            monkeypatch.setenv("NO_PROXY", "127.0.0.1")
            assert (await answered(server.url)).stop == "end"

    asyncio.run(scenario())


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

    asyncio.run(scenario())
