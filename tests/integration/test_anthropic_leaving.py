"""A call of the real SDK that is left before its end lets go of its connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from rejoinder.providers.anthropic import AnthropicProvider
from rejoinder.providers.errors import ProviderError
from rejoinder.providers.silence import with_silence_limit
from rejoinder.testing.conformance import check_stops, collect
from tests.integration.recorded import asking
from tests.integration.sse import serving, start, text

if TYPE_CHECKING:
    from tests.integration.sse import Connection

ASK = asking()


def test_silence_in_the_middle_ends_the_call_and_closes_it() -> None:
    async def scenario() -> None:
        async def answer(connection: Connection) -> None:
            await connection.begin()
            await connection.send(start() + text(0, "Hel"))
            await connection.until_left()

        async with serving(answer) as server:
            provider = AnthropicProvider(api_key="none", base_url=server.url)
            provider._connected()  # loading certificates is not the silence that is meant here
            with pytest.raises(ProviderError) as caught:
                await collect(provider.stream(ASK), silence=1.0)
            assert caught.value.failure.kind == "stream_silence"
            assert caught.value.failure.retryable
            with anyio.fail_after(10):
                await anyio.to_thread.run_sync(server.left.wait, 10)
            assert server.left.is_set()
            await provider.aclose()

    anyio.run(scenario)


def test_a_cancelled_call_closes_its_connection_and_is_no_error() -> None:
    async def scenario() -> None:
        async def answer(connection: Connection) -> None:
            await connection.begin()
            await connection.send(start() + text(0, "Hel"))
            await connection.until_left()

        async with serving(answer) as server:
            provider = AnthropicProvider(api_key="none", base_url=server.url)
            await check_stops(provider.stream(ASK), server.left.is_set)
            await provider.aclose()

    anyio.run(scenario)


def test_leaving_early_closes_the_connection() -> None:
    async def scenario() -> None:
        async def answer(connection: Connection) -> None:
            await connection.begin()
            await connection.send(start() + text(0, "Hel"))
            await connection.until_left()

        async with serving(answer) as server:
            provider = AnthropicProvider(api_key="none", base_url=server.url)
            items = with_silence_limit(provider.stream(ASK), 10)
            await anext(items)
            await items.aclose()
            await anyio.to_thread.run_sync(server.left.wait, 10)
            assert server.left.is_set()
            await provider.aclose()

    anyio.run(scenario)
