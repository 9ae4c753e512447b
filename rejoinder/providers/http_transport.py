"""The way of the SDK's HTTP client to the network, for hundreds of streams in one process.

httpx's own asks the system about every idle connection whenever a request begins or ends, and each
event of an answer crosses a dozen layers of it. Here the pool is a list, and what has come together
crosses together. It does what the SDK's default client does, with the same limits, certificates and
socket options; behind a proxy that client does everything itself.
"""

import asyncio
import socket
import ssl
import sys
from collections import defaultdict, deque
from collections.abc import AsyncIterator
from functools import cached_property
from math import inf
from typing import TypeAlias
from urllib.request import getproxies

import httpx2
from anthropic import DEFAULT_CONNECTION_LIMITS, DefaultAsyncHttpxClient

from rejoinder.providers.http_connection import Answer, Connection, Timeouts

OTHER_ADDRESS_SECONDS = 0.25
"""How long one address of a host may take before the next one is tried, too."""
KEPT_ALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 60), ("TCP_KEEPCNT", 5))
"""As the SDK has it: a line that is dead is noticed, although nobody speaks."""
IS_OVER = "is_over"
"""An extension of each response: a function that says whether all of its body has come."""
Place: TypeAlias = tuple[str, str, int, str]


def http_client() -> httpx2.AsyncClient:
    """The client that the SDK makes by default, on this transport unless there is a proxy."""
    if not getproxies().keys().isdisjoint(("http", "https", "all")):
        return DefaultAsyncHttpxClient()
    return DefaultAsyncHttpxClient(transport=Transport(DEFAULT_CONNECTION_LIMITS))


class Transport(httpx2.AsyncBaseTransport):
    """HTTP/1.1 over TCP or TLS. For one event loop."""

    def __init__(self, limits: httpx2.Limits) -> None:
        """Connect to nothing yet."""
        most, idle = limits.max_connections, limits.max_keepalive_connections
        self._slots = asyncio.Semaphore(sys.maxsize if most is None else most)
        self._most_idle = inf if idle is None else idle
        self._expiry = inf if limits.keepalive_expiry is None else limits.keepalive_expiry
        self._idle: defaultdict[Place, deque[Connection]] = defaultdict(deque)
        self._open: set[Connection] = set()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request; the answer's body is still to come."""
        timeouts: Timeouts = request.extensions.get("timeout", {})
        place = _place(request)
        await self._slot(timeouts.get("pool"))
        connection: Connection | None = None
        try:
            connection = self._kept(place) or await self._connected(place, timeouts.get("connect"))
            answer = await connection.ask(request, timeouts)
        except BaseException:
            self._drop(connection)
            self._slots.release()
            raise
        return httpx2.Response(
            answer.head.status_code,
            headers=answer.head.headers.raw_items(),
            stream=_Body(self, place, connection, answer),
            extensions={
                "http_version": b"HTTP/" + answer.head.http_version,
                "reason_phrase": answer.head.reason,
                IS_OVER: answer.is_over,
            },
        )

    async def aclose(self) -> None:
        """Close all connections."""
        for connection in [*self._open]:
            self._drop(connection)
        self._idle.clear()

    def done(self, place: Place, connection: Connection, *, leaves_open: bool) -> None:
        """Take back a connection whose answer is over, or is not wanted any more."""
        self._slots.release()
        if not leaves_open or not connection.is_quiet:
            self._drop(connection)
            return
        connection.idle_since = asyncio.get_running_loop().time()
        self._idle[place].append(connection)
        self._expire()

    async def _slot(self, seconds: float | None) -> None:
        if not self._slots.locked():
            await self._slots.acquire()
            return
        try:
            async with asyncio.timeout(seconds):
                await self._slots.acquire()
        except TimeoutError as error:
            raise httpx2.PoolTimeout("all connections are in use") from error

    def _kept(self, place: Place) -> Connection | None:
        """The connection to this place that was used last, if it is as it was."""
        self._expire()
        kept = self._idle[place]
        while kept:
            connection = kept.pop()
            if connection.is_quiet:
                return connection
            self._drop(connection)
        return None

    def _expire(self) -> None:
        """Close what has been idle for too long, and what is too much."""
        oldest = asyncio.get_running_loop().time() - self._expiry
        for kept in self._idle.values():
            while kept and (kept[0].idle_since < oldest or len(kept) > self._most_idle):
                self._drop(kept.popleft())

    async def _connected(self, place: Place, seconds: float | None) -> Connection:
        scheme, host, port, known_as = place
        loop = asyncio.get_running_loop()
        is_secret = scheme == "https"
        try:
            async with asyncio.timeout(seconds):
                transport, connection = await loop.create_connection(
                    Connection,
                    host,
                    port,
                    ssl=self._tls if is_secret else None,
                    server_hostname=known_as if is_secret else None,
                    happy_eyeballs_delay=OTHER_ADDRESS_SECONDS,
                )
        except TimeoutError as error:
            raise httpx2.ConnectTimeout(str(error)) from error
        except OSError as error:  # also what TLS does not like
            raise httpx2.ConnectError(str(error)) from error
        _keep_alive(transport.get_extra_info("socket"))
        self._open.add(connection)
        return connection

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        context = httpx2.create_ssl_context()
        context.set_alpn_protocols(["http/1.1"])
        return context

    def _drop(self, connection: Connection | None) -> None:
        if connection is not None:
            self._open.discard(connection)
            connection.close()


class _Body(httpx2.AsyncByteStream):
    """The body of an answer, which gives its connection back at the end."""

    def __init__(
        self, transport: Transport, place: Place, connection: Connection, answer: Answer
    ) -> None:
        self._transport = transport
        self._place = place
        self._connection = connection
        self._answer = answer
        self._closed = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._answer.body()

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            leaves_open = self._answer.leaves_open
            self._transport.done(self._place, self._connection, leaves_open=leaves_open)


def _place(request: httpx2.Request) -> Place:
    """Where a request goes: scheme, host, port, and the name in its certificate."""
    url = request.url
    if url.scheme not in ("http", "https"):
        raise httpx2.UnsupportedProtocol(f"{url.scheme!r} is neither http nor https")
    host = url.raw_host.decode("ascii")
    known_as: str = request.extensions.get("sni_hostname") or host
    return url.scheme, host, url.port or (443 if url.scheme == "https" else 80), known_as


def _keep_alive(connected: socket.socket) -> None:
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEPT_ALIVE:
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
