"""The HTTP client under the Anthropic SDK: its connections, and what becomes of them."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx2
import pytest

from rejoinder.providers.http_transport import Transport
from tests.integration.listening import CHUNKED, OK, SIZED, Peer, each_time, listening
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

LIMITS = httpx2.Limits(max_connections=10, max_keepalive_connections=5, keepalive_expiry=5.0)
MEGABYTE = b"x" * 2**20


@asynccontextmanager
async def client(
    limits: httpx2.Limits = LIMITS, seconds: float = 10.0
) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(transport=Transport(limits), timeout=seconds) as made:
        yield made


def run(scenario: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 60))


async def until(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_until, condition)


def all_heard(http: httpx2.AsyncClient) -> bool:
    """Whether each idle connection knows that something came, or that it is closed."""
    transport = http._transport
    assert isinstance(transport, Transport)
    return not any(connection.is_quiet for connection in transport._open)


@pytest.mark.parametrize(
    "answer", [SIZED, CHUNKED + b"5\r\nhello\r\n0\r\n\r\n", SIZED.replace(b"200", b"429")]
)
def test_a_connection_is_used_again_after_a_complete_answer(answer: bytes) -> None:
    async def scenario() -> None:
        async with (
            listening(lambda peer: each_time(peer, answer)) as server,
            client() as http,
        ):
            for _ in range(3):
                assert (await http.post(server.url, content=b"{}")).content == b"hello"
            assert len(server.peers) == 1

    run(scenario())


@pytest.mark.parametrize(
    "answer",
    [
        SIZED.replace(b"OK\r\n", b"OK\r\nconnection: close\r\n"),
        SIZED.replace(b"1.1", b"1.0"),
        SIZED + b"HTTP/1.1 200 OK\r\n",
        CHUNKED + b"5\r\nhello\r\n0\r\n\r\nand more",
    ],
)
def test_it_is_not_where_nobody_knows_what_it_would_say_next(answer: bytes) -> None:
    async def scenario() -> None:
        async with (
            listening(lambda peer: each_time(peer, answer)) as server,
            client() as http,
        ):
            for _ in range(2):
                assert (await http.post(server.url, content=b"{}")).content == b"hello"
            assert len(server.peers) == 2

    run(scenario())


def test_a_connection_that_the_server_closed_meanwhile_is_not_used() -> None:
    async def scenario() -> None:
        async def once(peer: Peer) -> None:
            await peer.request()
            await peer.say(SIZED)

        async with listening(once) as server, client() as http:
            for _ in range(5):
                assert (await http.get(server.url)).content == b"hello"
                await until(lambda: all_heard(http))
            assert len(server.peers) == 5

    run(scenario())


def test_a_connection_on_which_something_came_unasked_is_not_used() -> None:
    async def scenario() -> None:
        said = asyncio.Event()

        async def chatty(peer: Peer) -> None:
            await peer.request()
            await peer.say(SIZED)
            await said.wait()
            await peer.say(b"HTTP/1.1 408 Too late\r\n\r\n")
            await peer.until_left()

        async with listening(chatty) as server, client() as http:
            await http.get(server.url)
            said.set()
            await until(lambda: all_heard(http))
            assert (await http.get(server.url)).content == b"hello"
            assert len(server.peers) == 2

    run(scenario())


def test_connections_are_let_go_when_they_are_idle_for_too_long_or_too_many() -> None:
    async def scenario() -> None:
        async with listening(each_time) as server:
            async with client(httpx2.Limits(keepalive_expiry=-1.0)) as http:
                for _ in range(2):
                    await http.get(server.url)
            assert len(server.peers) == 2
            async with client(httpx2.Limits(max_keepalive_connections=1)) as http:
                for _ in range(2):
                    await asyncio.gather(*(http.get(server.url) for _ in range(3)))
            assert len(server.peers) == 2 + 3 + 2

    run(scenario())


def test_a_request_waits_for_a_connection_but_not_for_ever() -> None:
    async def scenario() -> None:
        async with (
            listening(each_time) as server,
            client(httpx2.Limits(max_connections=1), seconds=0.2) as http,
        ):
            async with http.stream("GET", server.url):
                with pytest.raises(httpx2.PoolTimeout):
                    await http.get(server.url)
                waiting = asyncio.create_task(http.get(server.url))
                await asyncio.sleep(0)  # let it begin
            assert (await waiting).content == b"hello"

    run(scenario())


@pytest.mark.parametrize("said", [b"", CHUNKED + b"5\r\nhel"])
def test_whoever_is_cancelled_closes_the_connection_and_makes_room(said: bytes) -> None:
    async def scenario() -> None:
        async def half(peer: Peer) -> None:
            await peer.request()
            await peer.say(said)
            await peer.until_left()

        async with (
            listening(half) as server,
            client(httpx2.Limits(max_connections=1)) as http,
        ):
            for _ in range(3):
                server.left.clear()
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await http.get(server.url)
                await until(server.left.is_set)

    run(scenario())


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (b"", httpx2.RemoteProtocolError),
        (b"SSH-2.0\r\n\r\n", httpx2.RemoteProtocolError),
        (CHUNKED + b"5\r\nhel", httpx2.RemoteProtocolError),
        (CHUNKED + b"?\r\n", httpx2.RemoteProtocolError),
        (SIZED[:-1], httpx2.RemoteProtocolError),
    ],
)
def test_an_answer_that_is_none_is_an_error(said: bytes, expected: type[Exception]) -> None:
    async def scenario() -> None:
        async def speak(peer: Peer) -> None:
            await peer.request()
            await peer.say(said)

        async with listening(speak) as server, client() as http:
            with pytest.raises(expected):
                await http.get(server.url)

    run(scenario())


def test_a_lost_connection_is_an_error() -> None:
    async def scenario() -> None:
        async def reset(peer: Peer) -> None:
            await peer.request()
            await peer.say(CHUNKED + b"5\r\nhel")
            raw = peer.writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            peer.writer.transport.abort()

        async with listening(reset) as server, client() as http:
            with pytest.raises(httpx2.ReadError):
                await http.get(server.url)

    run(scenario())


@pytest.mark.parametrize("count", [0, 1, 2])
def test_silence_is_a_timeout_also_after_pieces_that_came(count: int) -> None:
    async def scenario() -> None:
        async def slow(peer: Peer) -> None:
            await peer.request()
            await peer.say(CHUNKED)
            for _ in range(count):
                await asyncio.sleep(0.3)
                await peer.say(b"1\r\na\r\n")
            await peer.until_left()

        async with listening(slow) as server, client(seconds=0.5) as http:
            async with http.stream("GET", server.url) as response:
                pieces = response.aiter_bytes()
                got = [await anext(pieces) for _ in range(count)]
                with pytest.raises(httpx2.ReadTimeout):
                    await anext(pieces)
            assert got == [b"a"] * count, "each wait is measured by itself"
            await until(server.left.is_set)

    run(scenario())


def test_a_body_arrives_whole_at_a_slow_reader_and_times_out_at_none() -> None:
    async def scenario() -> None:
        got, over = 0, asyncio.Event()

        async def slow(peer: Peer) -> None:
            nonlocal got
            await peer.reader.readuntil(b"\r\n\r\n")
            while got < 8 * len(MEGABYTE):
                got += len(await peer.reader.read(2**18))
                await asyncio.sleep(0.001)
            await peer.say(SIZED)

        async def deaf(_: Peer) -> None:
            await over.wait()

        async with client(seconds=0.5) as http:
            async with listening(slow) as server:
                assert (await http.post(server.url, content=8 * MEGABYTE)).content == b"hello"
            assert got == 8 * len(MEGABYTE)
            async with listening(deaf) as server:
                with pytest.raises(httpx2.WriteTimeout):
                    await http.post(server.url, content=32 * MEGABYTE)
                over.set()

    run(scenario())


def test_a_refusal_is_read_although_the_body_was_not() -> None:
    async def scenario() -> None:
        async def refuse(peer: Peer) -> None:
            await peer.reader.readuntil(b"\r\n\r\n")
            await peer.say(SIZED.replace(b"200", b"413"))
            await peer.until_left()

        async with listening(refuse) as server, client() as http:
            answer = await http.post(server.url, content=MEGABYTE)
            assert (answer.status_code, answer.content) == (413, b"hello")

    run(scenario())


def test_a_server_that_nobody_listens_to_is_held_up() -> None:
    async def scenario() -> None:
        said = 0

        held_up = asyncio.Event()

        async def pour(peer: Peer) -> None:
            nonlocal said
            await peer.request()
            await peer.say(OK + b"content-length: %d\r\n\r\n" % (64 * len(MEGABYTE)))
            for _ in range(64):
                saying = asyncio.create_task(peer.say(MEGABYTE))
                if not (await asyncio.wait([saying], timeout=1.0))[0]:
                    held_up.set()
                await saying
                said += 1

        async with (
            listening(pour) as server,
            client() as http,
            http.stream("GET", server.url) as response,
        ):
            await until(held_up.is_set)
            assert said < 64
            assert len(await response.aread()) == 64 * len(MEGABYTE)

    run(scenario())


def test_what_no_server_would_take_is_not_sent() -> None:
    async def scenario() -> None:
        async with listening(each_time) as server, client() as http:
            with pytest.raises(httpx2.LocalProtocolError):
                await http.get(server.url, headers={"x-api-key": "with\nanother: line"})
            for _ in range(2):
                with pytest.raises(httpx2.LocalProtocolError):
                    await http.post(server.url, content=b"{}", headers={"x-api-key": "a\rb: c"})
            with pytest.raises(httpx2.UnsupportedProtocol):
                await http.get("ftp://127.0.0.1/")
            assert (await http.get(server.url)).content == b"hello"

    run(scenario())


def test_nobody_there_is_an_error_to_connect() -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        async with client() as http:
            with pytest.raises(httpx2.ConnectError):
                await http.get(f"http://127.0.0.1:{port}")

    run(scenario())


def test_a_server_that_does_not_greet_is_given_up() -> None:
    async def scenario() -> None:
        async with listening(Peer.until_left) as server, client(seconds=0.3) as http:
            with pytest.raises(httpx2.ConnectTimeout):
                await http.get(server.url.replace("http:", "https:"))
            await until(server.left.is_set)

    run(scenario())


def test_a_dead_line_is_noticed_by_the_system() -> None:
    async def scenario() -> None:
        transport = Transport(LIMITS)
        async with listening(each_time) as server, httpx2.AsyncClient(transport=transport) as http:
            await http.get(server.url)
            (connection,) = transport._open
            raw = connection._transport.get_extra_info("socket")
            assert raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 5

    run(scenario())
