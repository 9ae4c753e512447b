"""A model on the loopback that costs as little as it can, and keeps the clock.

`python -m scripts.bench_parts.model_server` prints its address and serves until it is ended. POST
/v1/messages answers as the Messages API does, streamed or not; what it says follows from the
conversation (`task.due`). GET /log gives a line for each call since the last time (task, number,
when it came, when its last byte left), and the CPU seconds that the server has used.
"""

import asyncio
import json
import resource
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from scripts.bench_parts.task import MODEL, TOOL, Task, due

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n"
_log: list[tuple[str, int, float, float]] = []


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve one connection, request after request."""
    with suppress(ConnectionError, asyncio.IncompleteReadError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            came = time.time()
            if head.startswith(b"get"):
                await _tell(writer)
                continue
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
            body = json.loads(await reader.readexactly(length))
            await _answer(body, came, writer)
    writer.close()


async def _tell(writer: asyncio.StreamWriter) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    told = {"calls": list(_log), "cpu": used.ru_utime + used.ru_stime}
    _log.clear()
    await _whole(writer, b"application/json", json.dumps(told).encode())


async def _answer(body: Mapping[str, Any], came: float, writer: asyncio.StreamWriter) -> None:
    found = due(body["messages"])
    if found is None:
        raise ConnectionResetError("there is no task in this")
    task, done = found
    message = _message(task, done)
    if not body.get("stream"):
        await _whole(writer, b"application/json", json.dumps(message).encode())
    elif task.pace:
        await _paced(writer, message, task.pace)
    else:
        await _whole(writer, b"text/event-stream", b"".join(_events(message)))
    _log.append((task.id, done, came, time.time()))


def _message(task: Task, done: int) -> dict[str, Any]:
    last = done + 1 >= task.calls
    content: list[dict[str, Any]] = [{"type": "text", "text": "word " * task.tokens}]
    if not last:
        call_id = f"toolu_{task.id}_{done}"
        call = {"type": "tool_use", "id": call_id, "name": TOOL, "input": {"a": done, "b": 1}}
        content.append(call)
    return {
        "id": f"msg_{task.id}_{done}",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": content,
        "stop_reason": "end_turn" if last else "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 100, "output_tokens": task.tokens},
    }


def _events(message: Mapping[str, Any]) -> list[bytes]:
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}}
    ]
    for index, block in enumerate(message["content"]):
        at = {"index": index}
        if block["type"] == "text":
            events.append({"type": "content_block_start", **at, "content_block": _EMPTY})
            for word in block["text"].split():
                delta = {"type": "text_delta", "text": f"{word} "}
                events.append({"type": "content_block_delta", **at, "delta": delta})
        else:
            begun = {**block, "input": {}}
            events.append({"type": "content_block_start", **at, "content_block": begun})
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            events.append({"type": "content_block_delta", **at, "delta": delta})
        events.append({"type": "content_block_stop", **at})
    ended = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    events += [
        {"type": "message_delta", "delta": ended, "usage": message["usage"]},
        {"type": "message_stop"},
    ]
    return [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events]


_EMPTY = {"type": "text", "text": ""}


async def _paced(writer: asyncio.StreamWriter, message: Mapping[str, Any], pace: float) -> None:
    writer.write(_HEAD % b"text/event-stream" + b"transfer-encoding: chunked\r\n\r\n")
    due_at = time.monotonic()
    for event in _events(message):
        if b"text_delta" in event:
            due_at += pace
            await asyncio.sleep(max(0.0, due_at - time.monotonic()))
        writer.write(b"%x\r\n%b\r\n" % (len(event), event))
        await writer.drain()
    writer.write(b"0\r\n\r\n")
    await writer.drain()


async def _whole(writer: asyncio.StreamWriter, kind: bytes, body: bytes) -> None:
    writer.write(_HEAD % kind + b"content-length: %d\r\n\r\n" % len(body) + body)
    await writer.drain()


async def main() -> None:
    """Serve until the process is ended."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=2048, limit=2**26)
    port = server.sockets[0].getsockname()[1]
    print(f"http://127.0.0.1:{port}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
