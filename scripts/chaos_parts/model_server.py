"""A model on the loopback: the Messages API's stream, over real HTTP, from a process of its own.

`python -m scripts.chaos_parts.model_server LOG SEED` prints its address and serves until it is
ended. It keeps no state: what it answers follows from the conversation in the request (`due`).
Now and then it fails as the real one does: overloaded, broken, or cut off in the middle. LOG gets a
line per request with what became of it, for counting what was paid for.
"""

import asyncio
import json
import math
import random
import secrets
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.chaos_parts.conversation import Due, asks_for_summary, due
from scripts.chaos_parts.plan import WAIT, Call

SHORTEST_PAUSE, LONGEST_PAUSE = 0.02, 0.06
FAULTS = {"overloaded": 0.02, "broken": 0.01, "cut": 0.02}
STATUS = {"overloaded": 529, "broken": 500}
PIECE, MOST_PIECES = 24, 20
"""Characters of one delta of a tool's arguments, at least; and how many there are at most."""
LITTLE, PLENTY = 500, 150_000
"""Tokens that were read; the second is more than a chat may have before it is summarised."""
SUMMARY = -1
"""Stands for the step, where a request asks for a summary."""


@dataclass
class Model:
    """Answers requests; `fault` draws what goes wrong."""

    log: Path
    dice: random.Random

    def fault(self) -> str | None:
        """Draw a failure, mostly none."""
        drawn = self.dice.random()
        for name, chance in FAULTS.items():
            if (drawn := drawn - chance) < 0:
                return name
        return None

    def note(self, plan_id: str, step: int, began: float, became: str) -> None:
        """Write a line about a request."""
        line = {"at": began, "took": time.time() - began, "id": plan_id, "step": step}
        with self.log.open("a", encoding="utf-8") as log:
            log.write(json.dumps({**line, "became": became}) + "\n")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, request after request."""
        try:
            while (body := await _request(reader)) is not None:
                if not await self._answer(body, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(self, body: Mapping[str, Any], writer: asyncio.StreamWriter) -> bool:
        """Answer one request; False if the connection cannot be used again."""
        found = due(body["messages"])
        if found is None:
            await _refuse(writer, 400, "invalid_request_error", "There is no plan in this.")
            return True
        sums_up = asks_for_summary(body["messages"])
        step = SUMMARY if sums_up else found.step
        began, fault = time.time(), self.fault()
        if fault in STATUS:
            self.note(found.plan.id, step, began, fault)
            await _refuse(writer, STATUS[fault], "overloaded_error", "Try again.")
            return True
        became = "left"
        events = list(_spoken(found.summary) if sums_up else _events(found))
        try:
            became = await self._stream(events, writer, cut=fault == "cut")
        finally:
            self.note(found.plan.id, step, began, became)
        return became == "complete"

    async def _stream(
        self, events: list[dict[str, Any]], writer: asyncio.StreamWriter, *, cut: bool
    ) -> str:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\nrequest-id: req_%b\r\n\r\n"
            % secrets.token_hex(6).encode()
        )
        end = self.dice.randrange(1, len(events)) if cut else len(events)
        async for event in _paced(events[:end], self.dice):
            await _chunk(writer, f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        if cut:
            return "cut"
        await _chunk(writer, b"")
        return "complete"


def _events(due: Due) -> Iterator[dict[str, Any]]:
    """What the API says to the next step of a plan.

    Right after a summary the context cannot be full again: a real model would be broken.
    """
    plan, step = due.plan, due.step
    read = PLENTY if plan.full == step and not due.fresh else LITTLE
    calls = plan.steps[step] if step < len(plan.steps) else ()
    if not calls:
        yield from _spoken(plan.answer, read=read)
        return
    uses = []
    for place, call in enumerate(calls):
        name, arguments = _called(due, place, call)
        block = {"type": "tool_use", "id": f"toolu_{secrets.token_hex(8)}", "name": name}
        uses.append(({**block, "input": {}}, _json_deltas(json.dumps(arguments))))
    yield from _spoken(f"Step {step} of {plan.id}.", uses, read=read)


def _called(due: Due, place: int, call: Call) -> tuple[str, dict[str, Any]]:
    """A tool's name, and what it is told. Nobody waits for nobody: that is `quick`."""
    if call.tool == WAIT and not due.agents:
        return "quick", {"nonce": due.plan.nonce(due.step, place)}
    return call.tool, due.plan.arguments(due.step, place, due.agents)


Block = tuple[dict[str, Any], Iterator[dict[str, Any]]]


def _spoken(words: str, uses: Sequence[Block] = (), read: int = LITTLE) -> Iterator[dict[str, Any]]:
    """A message, its blocks, its end."""
    usage = {"input_tokens": read, "output_tokens": 1}
    message: dict[str, Any] = {"id": f"msg_{secrets.token_hex(8)}", "type": "message"}
    message |= {"role": "assistant", "model": "claude-sonnet-4-5", "content": [], "usage": usage}
    yield {"type": "message_start", "message": {**message, "stop_reason": None}}
    yield from _block(0, {"type": "text", "text": ""}, _text_deltas(words))
    for place, (content, deltas) in enumerate(uses):
        yield from _block(place + 1, content, deltas)
    stop = "tool_use" if uses else "end_turn"
    delta = {"stop_reason": stop, "stop_sequence": None}
    yield {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 20}}
    yield {"type": "message_stop"}


def _block(
    index: int, content: dict[str, Any], deltas: Iterator[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    yield {"type": "content_block_start", "index": index, "content_block": content}
    for delta in deltas:
        yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}


def _text_deltas(words: str) -> Iterator[dict[str, Any]]:
    first, *rest = words.split(" ")
    yield {"type": "text_delta", "text": first}
    for word in rest:
        yield {"type": "text_delta", "text": f" {word}"}


def _json_deltas(text: str) -> Iterator[dict[str, Any]]:
    length = max(PIECE, math.ceil(len(text) / MOST_PIECES))
    for start in range(0, len(text), length):
        yield {"type": "input_json_delta", "partial_json": text[start : start + length]}


async def _paced(
    events: list[dict[str, Any]], dice: random.Random
) -> AsyncIterator[dict[str, Any]]:
    for event in events:
        if event["type"] == "content_block_delta":
            await asyncio.sleep(dice.uniform(SHORTEST_PAUSE, LONGEST_PAUSE))
        yield event


async def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    if writer.is_closing():
        raise ConnectionResetError("the other side has left")
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))
    await writer.drain()


async def _refuse(writer: asyncio.StreamWriter, status: int, kind: str, words: str) -> None:
    body = json.dumps({"type": "error", "error": {"type": kind, "message": words}}).encode()
    head = f"HTTP/1.1 {status} No\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    await writer.drain()


async def _request(reader: asyncio.StreamReader) -> Mapping[str, Any] | None:
    """The next request's body; None at the end of the connection."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin1").lower().split("\r\n")
    except asyncio.IncompleteReadError:
        return None
    lengths = [line.partition(":")[2] for line in head if line.startswith("content-length:")]
    body: Mapping[str, Any] = json.loads(await reader.readexactly(int(lengths[0])))
    return body


async def main(log: Path, seed: str) -> None:
    """Serve until the process is ended."""
    model = Model(log, random.Random(f"model {seed}"))  # noqa: S311  # a game
    server = await asyncio.start_server(model.serve, "127.0.0.1", 0, backlog=1024)
    port = server.sockets[0].getsockname()[1]
    print(f"http://127.0.0.1:{port}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
