"""Requests as they are sent: heads that were sent before, and bodies of all sizes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import httpx2
import pytest

from rejoinder.providers.http_transport import Transport
from tests.integration.listening import SIZED, Peer, each_time, listening

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine


def client() -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=Transport(httpx2.Limits()), timeout=10.0)


def run(scenario: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 60))


def test_a_head_that_was_sent_before_is_sent_with_what_is_new() -> None:
    async def scenario() -> None:
        heard: list[tuple[bytes, bytes]] = []

        async def listen(peer: Peer) -> None:
            while True:
                heard.append(await peer.request())
                await peer.say(SIZED)

        async def ask(path: str, content: bytes, **headers: str) -> tuple[list[bytes], bytes]:
            await http.post(server.url + path, content=content, headers=headers)
            head, body = heard[-1]
            assert head.endswith(b"\r\n\r\n")
            first, *lines = head[:-4].split(b"\r\n")
            return [first, *sorted(lines)], body

        async with listening(listen) as server, client() as http:
            first = await ask("/a", b"{}", key="one")
            assert b"POST /a HTTP/1.1" in first[0]
            assert b"Content-Length: 2" in first[0]
            assert b"Host: " + server.url.encode()[7:] in first[0]
            assert await ask("/a", b"{}", key="one") == first
            longer, body = await ask("/a", b"x" * 1234, key="one")
            assert [line.replace(b": 1234", b": 2") for line in longer] == first[0]
            assert body == b"x" * 1234
            other, _ = await ask("/a", b"{}", key="two")
            assert [line.replace(b"two", b"one") for line in other] == first[0]
            assert b"key: two" in other
            elsewhere, _ = await ask("/b?c=d", b"{}", key="one")
            assert elsewhere == [b"POST /b?c=d HTTP/1.1", *first[0][1:]]
            assert (await ask("/a", b"", key="one"))[0] != first[0]
            assert len(server.peers) == 1

    run(scenario())


def test_a_size_that_is_not_that_of_the_body_is_not_sent() -> None:
    async def scenario() -> None:
        async with listening(each_time) as server, client() as http:
            for size in ("1", "3", "2, 3", "x", "-2"):
                assert (await http.post(server.url, content=b"{}")).content == b"hello"
                with pytest.raises(httpx2.LocalProtocolError):
                    await http.post(server.url, content=b"{}", headers={"content-length": size})

    run(scenario())


def test_a_body_of_unknown_size_is_sent_in_pieces() -> None:
    async def scenario() -> None:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"hel"
            yield b"lo"

        async def listen(peer: Peer) -> None:
            heard.append(await peer.reader.readuntil(b"0\r\n\r\n"))
            await peer.say(SIZED)

        heard: list[bytes] = []
        async with listening(listen) as server, client() as http:
            assert (await http.post(server.url, content=pieces())).content == b"hello"
        assert heard[0].endswith(b"\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n")

    run(scenario())


@pytest.mark.parametrize("asks", ["close", "keep-alive"])
def test_a_request_that_wants_the_connection_closed_is_its_last(asks: str) -> None:
    async def scenario() -> None:
        async with listening(each_time) as server, client() as http:
            for _ in range(3):
                await http.post(server.url, content=b"{}", headers={"connection": asks})
            assert len(server.peers) == (3 if asks == "close" else 1)

    run(scenario())
