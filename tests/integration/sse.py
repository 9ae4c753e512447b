"""A small HTTP server on the loopback that answers as a test tells it to."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

USAGE = {"input_tokens": 10, "output_tokens": 1}


def event(data: dict[str, Any]) -> bytes:
    return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n".encode()


def start(**fields: Any) -> bytes:
    message: dict[str, Any] = {"id": "msg_1", "type": "message", "role": "assistant", "content": []}
    message |= {"model": "claude-sonnet-5", "stop_reason": None, "usage": USAGE, **fields}
    return event({"type": "message_start", "message": message})


def block(index: int, content: dict[str, Any], *deltas: dict[str, Any]) -> bytes:
    out = event({"type": "content_block_start", "index": index, "content_block": content})
    for delta in deltas:
        out += event({"type": "content_block_delta", "index": index, "delta": delta})
    return out + event({"type": "content_block_stop", "index": index})


def text(index: int, *words: str) -> bytes:
    deltas = [{"type": "text_delta", "text": word} for word in words]
    return block(index, {"type": "text", "text": ""}, *deltas)


def call(index: int, call_id: str, *pieces: str) -> bytes:
    content = {"type": "tool_use", "id": call_id, "name": "add", "input": {}}
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ("", *pieces)]
    return block(index, content, *deltas)


def end(reason: str | None = "end_turn", **usage: int) -> bytes:
    delta = {"stop_reason": reason, "stop_sequence": None}
    counts = {"output_tokens": 5, **usage}
    return event({"type": "message_delta", "delta": delta, "usage": counts}) + event(
        {"type": "message_stop"}
    )


HELLO = start() + text(0, "Hel", "lo") + end()


@dataclass
class Connection:
    """One request, and the way to answer it."""

    request: dict[str, Any]
    headers: dict[str, str]
    writer: asyncio.StreamWriter
    reader: asyncio.StreamReader

    async def begin(self, status: int = 200, **headers: str) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        lines = {"content-type": "text/event-stream", "request-id": "req_1", **named}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self.writer.write(f"HTTP/1.1 {status} Said\r\n{head}connection: close\r\n\r\n".encode())
        await self.writer.drain()

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def refuse(self, status: int, body: Any, **headers: str) -> None:
        await self.begin(status, **{"content_type": "application/json", **headers})
        await self.send(body if isinstance(body, bytes) else json.dumps(body).encode())

    def reset(self) -> None:
        raw: socket.socket = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def until_left(self) -> None:
        """Wait until the other side has closed."""
        while await self.reader.read(1024):
            pass


@dataclass
class Server:
    url: str
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    left: threading.Event = field(default_factory=threading.Event)


@asynccontextmanager
async def serving(answer: Callable[[Connection], Awaitable[None]]) -> AsyncIterator[Server]:
    """Answer every request with `answer`, and close."""
    server = Server("")

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin1").split("\r\n")
        lines = (line.split(": ", 1) for line in head[1:] if ": " in line)
        headers = {name.lower(): value for name, value in lines}
        body = json.loads(await reader.readexactly(int(headers["content-length"])))
        server.requests.append(body)
        server.headers.append(headers)
        try:
            await answer(Connection(body, headers, writer, reader))
        finally:
            writer.close()
            server.left.set()

    listening = await asyncio.start_server(handle, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listening.close()
        await listening.wait_closed()
