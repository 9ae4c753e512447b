"""One HTTP/1.1 connection, on plain asyncio.

The head of a request (`http_request.py`) and of an answer are h11's business, which is strict; the
body comes through `http_body.py`, which is quick. Raises nothing but httpx's own errors. Which
connection a request gets is decided in `http_transport.py`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from math import inf
from typing import cast

import h11
import httpx2

from rejoinder.providers.http_body import Chunked, Framing, MalformedError, Sized, UntilClosed
from rejoinder.providers.http_request import whole

FULL_BYTES = 2**18
"""What has come and nobody has read: beyond this the other side has to wait."""
HEAD_BYTES = 100 * 1024
_NO_BODY = frozenset({204, 304})

Timeouts = Mapping[str, float | None]


class Connection(asyncio.Protocol):
    """A connection. One request at a time."""

    def __init__(self) -> None:
        """Begin without a transport: the loop brings it."""
        self.idle_since = 0.0
        self._received = bytearray()
        self._over = False
        self._lost: Exception | None = None
        self._held_up = False
        self._paused = False
        self._read = _Wait(lambda: httpx2.ReadTimeout("nothing came"))
        self._written = _Wait(lambda: httpx2.WriteTimeout("nothing was taken"))

    @property
    def is_quiet(self) -> bool:
        """Whether it is open, and nothing came that nobody asked for."""
        return not (self._over or self._received or self._transport.is_closing())

    async def ask(self, request: httpx2.Request, timeouts: Timeouts) -> "Answer":
        """Send a request; its answer, once there is a head of it."""
        http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES)
        try:
            await self._send(http, request, timeouts.get("write"))
            head = await self._head(http, timeouts.get("read"))
        except h11.LocalProtocolError as error:
            raise httpx2.LocalProtocolError(str(error)) from error
        except h11.RemoteProtocolError as error:
            raise httpx2.RemoteProtocolError(str(error)) from error
        return Answer(self, http, head, request.method == "HEAD", timeouts.get("read"))

    async def read(self, seconds: float | None) -> bytes:
        """What has come, or comes next; nothing at the end."""
        received = self._received
        while not received and not self._over:
            await self._read.wait(seconds)
        if not received and self._lost is not None:
            raise httpx2.ReadError(str(self._lost)) from self._lost
        data = bytes(received)
        received.clear()
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        return data

    def close(self) -> None:
        """Let go at once, of what was not sent, too."""
        self._read.forget()
        self._written.forget()
        self._transport.abort()

    async def _send(
        self, http: h11.Connection, request: httpx2.Request, seconds: float | None
    ) -> None:
        if (everything := whole(http, request)) is not None:
            await self._write(everything, seconds)
            return
        head = h11.Request(
            method=request.method, target=request.url.raw_path, headers=request.headers.raw
        )
        ready = http.send(head) or b""
        async for piece in cast("AsyncIterator[bytes]", request.stream):
            await self._write(ready + (http.send(h11.Data(data=piece)) or b""), seconds)
            ready = b""
        await self._write(ready + (http.send(h11.EndOfMessage()) or b""), seconds)

    async def _write(self, data: bytes, seconds: float | None) -> None:
        """Send; if the other side has closed, it may have said why, so that is no error here."""
        if data and not self._transport.is_closing():
            self._transport.write(data)
        while self._held_up and not self._over:
            await self._written.wait(seconds)

    async def _head(self, http: h11.Connection, seconds: float | None) -> h11.Response:
        while True:
            event = http.next_event()
            if isinstance(event, h11.Response):
                return event
            if event is h11.NEED_DATA:
                data = await self.read(seconds)
                if not data:
                    raise httpx2.RemoteProtocolError("the server left without an answer")
                http.receive_data(data)
            elif not isinstance(event, h11.InformationalResponse):
                raise httpx2.RemoteProtocolError(f"{event!r} instead of an answer")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Keep what came for whoever reads."""
        self._received += data
        if len(self._received) > FULL_BYTES and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._read.end()

    def eof_received(self) -> None:
        """Note that nothing more will come; the transport closes itself."""
        self._over = True
        self._read.end()
        self._written.end()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that it is gone, and why."""
        self._lost = exc
        self.eof_received()

    def pause_writing(self) -> None:
        """Let whoever writes wait."""
        self._held_up = True

    def resume_writing(self) -> None:
        """Let whoever writes go on."""
        self._held_up = False
        self._written.end()


class Answer:
    """An answer: its head, and its body as it comes."""

    def __init__(
        self,
        connection: Connection,
        http: h11.Connection,
        head: h11.Response,
        is_bare: bool,  # noqa: FBT001  # to HEAD
        seconds: float | None,
    ) -> None:
        """See from the head where the body ends."""
        self.head = head
        self._connection = connection
        self._seconds = seconds
        self._begun = http.trailing_data[0]
        self._keeps = http.our_state is h11.DONE
        self._framing = Sized(0) if is_bare else _framing(head)

    def is_over(self) -> bool:
        """Whether all of the body has come: whoever reads on does not have to wait."""
        return self._framing.complete

    @property
    def leaves_open(self) -> bool:
        """Whether the connection can be asked again: all has come, and nothing more."""
        framing = self._framing
        return self._keeps and framing.complete and not framing.surplus

    async def body(self) -> AsyncIterator[bytes]:
        """The body, in pieces as large as what came together."""
        framing = self._framing
        data = self._begun
        try:
            while True:
                if content := framing.take(data):
                    yield content
                if framing.complete:
                    return
                data = await self._connection.read(self._seconds)
                if not data:
                    framing.end()
        except MalformedError as error:
            raise httpx2.RemoteProtocolError(str(error)) from error


def _framing(head: h11.Response) -> Framing:
    """Where the body ends; h11 has refused what contradicts itself."""
    headers = dict(head.headers)
    if head.status_code in _NO_BODY:
        return Sized(0)
    if b"transfer-encoding" in headers:
        return Chunked()
    size = headers.get(b"content-length")
    return UntilClosed() if size is None else Sized(int(size))


class _Wait:
    """Somebody who waits, with one timer for all waits: one for each costs more than the wait."""

    def __init__(self, late: Callable[[], Exception]) -> None:
        self._loop = asyncio.get_running_loop()
        self._late = late
        self._waiter: asyncio.Future[None] | None = None
        self._until = inf
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self, seconds: float | None) -> None:
        self._waiter = self._loop.create_future()
        self._until = inf if seconds is None else self._loop.time() + seconds
        if self._until < (inf if self._timer is None else self._timer.when()):
            self.forget()
            self._timer = self._loop.call_at(self._until, self._look)
        try:
            await self._waiter
        finally:
            self._waiter = None

    def end(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        """Judge the wait that there is now: the timer is of an earlier one."""
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return
        if self._loop.time() < self._until:
            if self._until < inf:
                self._timer = self._loop.call_at(self._until, self._look)
        else:
            self._waiter.set_exception(self._late())
