"""How the chunks of an answer come: what counts as a sign of life, and what is done at the end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import httpx2
import pytest

from rejoinder.core.model import Reply
from rejoinder.providers.anthropic import AnthropicProvider
from rejoinder.testing.conformance import check_answer, collect
from tests.integration.listening import CHUNKED, Peer, listening
from tests.integration.recorded import asking
from tests.integration.sse import HELLO, event

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rejoinder.core.model import Batch

ASK = asking()
HEAD = CHUNKED.replace(b"\r\n\r\n", b"\r\ncontent-type: text/event-stream\r\n\r\n")
BODY = b"%x\r\n%b\r\n" % (len(HELLO), HELLO)
LAST = b"0\r\n\r\n"


def batches(*chunks: bytes) -> list[Batch]:
    """What an answer in these chunks is told as, through somebody else's HTTP client."""

    async def body() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    def answer(_: httpx2.Request) -> httpx2.Response:
        kind = {"content-type": "text/event-stream"}
        return httpx2.Response(200, headers=kind, content=body())

    async def scenario() -> list[Batch]:
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
        provider = AnthropicProvider(api_key="none", base_url="http://api.test", http_client=http)
        try:
            return [batch async for batch in provider.stream(ASK)]
        finally:
            await provider.aclose()

    return asyncio.run(scenario())


def test_an_event_without_words_is_a_sign_of_life_but_part_of_one_or_a_comment_is_not() -> None:
    told = batches(event({"type": "ping"}), b": still here\n\n", HELLO[:9], HELLO[9:20], HELLO[20:])
    assert told[0] == []
    assert len(told) == 2
    assert isinstance(told[1][-1], Reply)


async def asked_twice(speak: Peer, last: asyncio.Event) -> None:
    while True:
        await speak.request()
        await speak.say(HEAD + BODY)
        await last.wait()
        await speak.say(LAST)


@pytest.mark.parametrize("comes_late", [False, True])
def test_the_end_of_the_body_is_read_and_the_connection_used_again(*, comes_late: bool) -> None:
    async def scenario() -> None:
        last = asyncio.Event()

        async with listening(lambda peer: asked_twice(peer, last)) as server:
            provider = AnthropicProvider(api_key="none", base_url=server.url)
            if not comes_late:
                last.set()
            for _ in range(2):
                stream = provider.stream(ASK)
                while not isinstance((await anext(stream))[-1], Reply):
                    pass
                last.set()  # the answer is complete before its body is
                assert [batch async for batch in stream] == []
                if comes_late:
                    last.clear()
            await provider.aclose()
        assert len(server.peers) == 1

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_an_end_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rejoinder.providers.anthropic.DRAIN_SECONDS", 0.05)

    async def scenario() -> None:
        never = asyncio.Event()

        async with listening(lambda peer: asked_twice(peer, never)) as server:
            provider = AnthropicProvider(api_key="none", base_url=server.url)
            for _ in range(2):
                check_answer(await collect(provider.stream(ASK)))
            await provider.aclose()
        assert len(server.peers) == 2

    asyncio.run(asyncio.wait_for(scenario(), 30))
