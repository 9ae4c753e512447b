"""A model on the loopback that costs as little as it can, and keeps the clock.

`python -m scripts.bench_parts.model_server` prints its address and serves until it is ended. POST
/v1/messages answers as the Messages API does, streamed or not; what it says follows from the
conversation (`task.due`). GET /log gives what it saw since the last time: each call that ended
(`Call`), those that are open, how many were open at once, and how late paced words were written;
GET /kept the same, and the next one tells it again.

Each paced word is an event, a chunk and a write of its own, as a real API's; one timer serves all.
"""

import asyncio
import gc
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from heapq import heappop, heappush, heapreplace
from typing import Any, cast

from scripts.bench_parts.model_words import answer, events
from scripts.bench_parts.processes import stand_apart
from scripts.bench_parts.task import Task, due

_OK = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n"
_SPREAD_SECONDS = 1.0
"""A crowd begins within so long, one after the other."""
_STALL_SECONDS = 8.0
"""If nobody else has come for so long, the crowd is as large as it gets."""
_AT_A_TIME = 64


@dataclass
class Call:
    """One call: whose, which, and when (seconds since the epoch)."""

    task: str
    number: int
    came: float
    """The first byte of the request was here."""
    first: float = 0.0
    """Just before the first word was written."""
    last: float = 0.0
    """Just before the last word was written."""
    ended: float = 0.0
    """The last byte was written."""


class Model:
    """What all connections share."""

    def __init__(self) -> None:
        """Begin with nobody."""
        self.ended: list[Call] = []
        self.calls: dict[int, Call] = {}
        self.most = 0
        self.late: list[float] = []
        self.crowd: list[tuple[Callable[[float], None], int]] = []
        self._stalled: asyncio.TimerHandle | None = None
        self._due: list[tuple[float, int, Stream]] = []
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, call: Call) -> None:
        """Note that a call is open."""
        self.calls[id(call)] = call
        self.most = max(self.most, len(self.calls))

    def end(self, call: Call) -> None:
        """Note that it is over, answered or not."""
        if self.calls.pop(id(call), None) is not None:
            call.ended = time.time()
            self.ended.append(call)

    def gather(self, start: Callable[[float], None], size: int) -> None:
        """Let a stream begin together with the others of its crowd."""
        self.crowd.append((start, size))
        if self._stalled is not None:
            self._stalled.cancel()
        if len(self.crowd) >= size:
            self._release()
        else:
            self._stalled = asyncio.get_running_loop().call_later(_STALL_SECONDS, self._release)

    def _release(self) -> None:
        now, crowd, self.crowd = time.monotonic(), self.crowd, []
        for place, (start, _) in enumerate(crowd):
            start(now + _SPREAD_SECONDS * place / len(crowd))

    def pace(self, stream: "Stream", at: float) -> None:
        """Have a stream write its next word at a moment."""
        self._number += 1
        heappush(self._due, (at, self._number, stream))
        if self._timer is None or at < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_at(at, self._write)

    def _write(self) -> None:
        """Write what is due, but not for ever: somebody may want to begin."""
        now = time.monotonic()
        for _ in range(_AT_A_TIME):
            if not self._due or self._due[0][0] > now:
                break
            at, number, stream = self._due[0]
            self.late.append(time.monotonic() - at)
            if stream.write():
                heapreplace(self._due, (at + stream.pace, number, stream))
            else:
                heappop(self._due)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(self._due[0][0], self._write) if self._due else None

    def tell(self, *, keep: bool) -> bytes:
        """What was seen since the last time; `keep`: the next time tells it again."""
        late = sorted(self.late)
        told = {
            "calls": [asdict(call) for call in self.ended],
            "open": [asdict(call) for call in self.calls.values()],
            "most": self.most,
            "words": len(late),
            "late_p50": statistics.median(late) if late else 0.0,
            "late_p99": late[int(len(late) * 0.99)] if late else 0.0,
        }
        if not keep:
            self.ended, self.late, self.most = [], [], len(self.calls)
        return json.dumps(told).encode()


class Stream:
    """One paced answer on its way."""

    def __init__(self, connection: "Connection", task: Task, done: int, call: Call) -> None:
        """Know all that will be said."""
        first, words, rest = events(answer(task, done))
        self.pace = task.pace
        self._connection = connection
        self._call = call
        self._first = _OK % b"text/event-stream" + b"transfer-encoding: chunked\r\n\r\n"
        self._first += _chunk(b"".join(first))
        self._word = _chunk(words[0])
        self._left = len(words)
        self._rest = b"".join(map(_chunk, rest)) + b"0\r\n\r\n"

    def start(self, at: float) -> None:
        """Begin at a moment."""
        self._connection.model.pace(self, at)

    def write(self) -> bool:
        """Write one word; whether there are more."""
        if self._connection.gone:
            return False
        now = time.time()
        call = self._call
        call.last = now
        if not call.first:
            call.first = now
            self._connection.write(self._first)
        self._connection.write(self._word)
        self._left -= 1
        if self._left:
            return True
        self._connection.write(self._rest)
        self._connection.end(call)
        return False


def _chunk(event: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(event), event)


class Connection(asyncio.Protocol):
    """One connection, request after request."""

    def __init__(self, model: Model) -> None:
        """Begin with an empty buffer."""
        self.model = model
        self.gone = False
        self._call: Call | None = None
        self._buffer = bytearray()
        self._body_at = self._needs = 0
        self._came = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, _: Exception | None) -> None:
        """Nobody listens any more."""
        self.gone = True
        if self._call is not None:
            self.end(self._call)

    def data_received(self, data: bytes) -> None:
        """Take bytes; answer once a request is complete."""
        if not self._buffer:
            self._came = time.time()
        self._buffer += data
        if not self._body_at:
            self._body_at = self._buffer.find(b"\r\n\r\n") + 4
            if self._body_at < 4:  # noqa: PLR2004  # not found
                self._body_at = 0
                return
            head = bytes(self._buffer[: self._body_at]).lower()
            length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
            self._needs = self._body_at + int(length or 0)
        if len(self._buffer) < self._needs:
            return
        body = bytes(self._buffer[self._body_at : self._needs])
        path = bytes(self._buffer[: self._body_at]).split()[1]
        self._buffer.clear()
        self._body_at = 0
        if path in (b"/log", b"/kept"):
            self._whole(b"application/json", self.model.tell(keep=path == b"/kept"))
        else:
            self._answer(json.loads(body))

    def write(self, data: bytes) -> None:
        """Send bytes now."""
        self._transport.write(data)

    def end(self, call: Call) -> None:
        """The answer is out, or nobody wants it."""
        self._call = None
        self.model.end(call)

    def _answer(self, body: dict[str, Any]) -> None:
        found = due(body["messages"])
        if found is None:  # nobody's task
            self._transport.close()
            return
        task, done = found
        call = self._call = Call(task.id, done, self._came)
        self.model.begin(call)
        if task.pace and body.get("stream"):
            stream = Stream(self, task, done, call)
            if task.crowd:
                self.model.gather(stream.start, task.crowd)
            else:
                stream.start(time.monotonic())
            return
        said = answer(task, done)
        call.first = call.last = time.time()
        if body.get("stream"):
            self._whole(b"text/event-stream", b"".join(part for of in events(said) for part in of))
        else:
            self._whole(b"application/json", json.dumps(said).encode())
        self.end(call)

    def _whole(self, kind: bytes, body: bytes) -> None:
        self.write(_OK % kind + b"content-length: %d\r\n\r\n" % len(body) + body)


async def main() -> None:
    """Serve until the process is ended."""
    stand_apart()
    gc.disable()  # nothing here is in a circle
    model = Model()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(model), "127.0.0.1", 0, backlog=2048)
    port = server.sockets[0].getsockname()[1]
    print(f"http://127.0.0.1:{port}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
