"""A server on the loopback that a test speaks through, byte by byte."""

from __future__ import annotations

import asyncio
import subprocess
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

OK = b"HTTP/1.1 200 OK\r\n"
SIZED = OK + b"content-length: 5\r\n\r\nhello"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"


@dataclass
class Peer:
    """The server's side of one connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def request(self) -> tuple[bytes, bytes]:
        """The next request: its head, and its body."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        size = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        return head, await self.reader.readexactly(int(size or 0))

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def until_left(self) -> None:
        while await self.reader.read(2**16):
            pass


@dataclass
class Listening:
    url: str
    peers: list[Peer] = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)


@asynccontextmanager
async def listening(
    speak: Callable[[Peer], Awaitable[None]], tls: ssl.SSLContext | None = None
) -> AsyncIterator[Listening]:
    """Let `speak` serve each connection, and close it afterwards."""
    seen = Listening("")

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        seen.peers.append(peer)
        try:
            await speak(peer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the other side is done
        finally:
            writer.close()
            seen.left.set()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls)
    scheme, port = "https" if tls else "http", server.sockets[0].getsockname()[1]
    seen.url = f"{scheme}://127.0.0.1:{port}"
    try:
        yield seen
    finally:
        server.close()
        for peer in seen.peers:
            peer.writer.transport.abort()


async def each_time(peer: Peer, answer: bytes = SIZED) -> None:
    """Answer every request of a connection the same way."""
    while True:
        await peer.request()
        await peer.say(answer)


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for the loopback that nobody but its owner trusts, and its key."""
    made, key = folder / "own.pem", folder / "own.key"
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -keyout {key} -out {made}"
    command += " -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
    subprocess.run(command.split(), check=True, capture_output=True)
    return made, key
