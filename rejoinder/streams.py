"""A chat's events in a Redis stream: written in batches, read by cursor from anywhere.

The stream is a window, not the truth: it is capped and expires, and everything durable in it stands
in Postgres too. A reader that missed something is told so (`gap`) and reads the messages instead.
Writing never blocks a step and never fails one; what Redis does not take is dropped, and the reader
sees the gap.
"""

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias
from uuid import UUID

import redis

from rejoinder.core.parts import Json

log = logging.getLogger(__name__)

BATCH_SECONDS = 0.04
"""How long deltas are collected. People cannot see less, and a pipeline carries many chats."""
URGENT_SECONDS = 0.015
"""How long even the urgent ones are collected, if something was sent just before."""
HURRY_SECONDS = 0.1
MAX_EVENTS = 10_000
"""Per chat, roughly; older ones are cut off."""
EXPIRE_SECONDS = 24 * 3600
MAX_WAITING = 50_000
"""Events held back while Redis is away; beyond that the oldest are dropped."""
ANSWER_SECONDS = 2.0
"""How long Redis may hold back an answer: less than redis-py waits for one (5 s, by default)."""
START = "0-0"
LIVE = frozenset({"part", "compaction"})
"""Events that may hold deltas of a text, to be joined."""


Sent: TypeAlias = tuple[UUID, str, dict[str, Json]]
"""An event on its way: whose, of which kind, and what it says."""


@dataclass(frozen=True)
class StreamEvent:
    """One event, and the cursor to go on from after it."""

    cursor: str
    kind: str
    data: Mapping[str, Any]


def key_of(prefix: str, chat_id: UUID | str) -> str:
    """The name of a chat's stream."""
    return f"{prefix}chat:{chat_id}"


class EventWriter:
    """Sends events in the order they were added, in batches, from a thread of its own."""

    def __init__(self, client: "redis.Redis", prefix: str) -> None:
        """Start the thread with the first event."""
        self._client = client
        self._prefix = prefix
        self._waiting: deque[Sent] = deque(maxlen=MAX_WAITING)
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._urgent = threading.Event()
        self._hurried = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._sending = threading.Lock()
        self._closed = False
        self._sent_at = -URGENT_SECONDS
        self._thread: threading.Thread | None = None

    def add(self, chat_id: UUID, kind: str, data: Mapping[str, Json], *, now: bool = True) -> None:
        """Add an event; `now` sends it (and all before it) without waiting for the batch."""
        self._waiting.append((chat_id, kind, dict(data)))
        self._idle.clear()
        if self._thread is None:
            self._start()
        if not self._wake.is_set():
            self._wake.set()
        if now and not self._urgent.is_set():
            self._urgent.set()

    def hurry(self, seconds: float = HURRY_SECONDS) -> None:
        """Have what is waiting sent now, before others, in other processes, have more to tell.

        Waits for it a little; if Redis does not answer, the order is not worth more.
        """
        if self._idle.is_set():
            return  # or the next ones, which nobody waits for, would be hurried
        self._hurried.set()
        self._urgent.set()
        self._idle.wait(seconds)

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="events", daemon=True)
                self._thread.start()

    def flush(self) -> None:
        """Send what is waiting, now, from this thread."""
        with self._sending:
            batch = self._take()
            if batch:
                self._send(batch)
            if not self._waiting:
                self._idle.set()

    def close(self) -> None:
        """Send the rest and end the thread."""
        self._closed = True
        self._wake.set()
        self.hurry(0)
        if self._thread is not None:
            self._thread.join(timeout=2)
        self.flush()

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait()
            self._urgent.wait(BATCH_SECONDS)
            self._hurried.wait(self._sent_at + URGENT_SECONDS - time.monotonic())
            self._wake.clear()
            self._urgent.clear()
            self._hurried.clear()
            self.flush()
            self._sent_at = time.monotonic()

    def _take(self) -> list[Sent]:
        taken = (self._waiting.popleft() for _ in range(len(self._waiting)))
        return coalesce([*taken])

    def _send(self, batch: list[Sent]) -> None:
        pipe = self._client.pipeline(transaction=False)
        for chat_id, kind, data in batch:
            name = key_of(self._prefix, chat_id)
            body = json.dumps([kind, data], separators=(",", ":"))
            pipe.xadd(name, {"e": body}, maxlen=MAX_EVENTS, approximate=True)
        for name in {key_of(self._prefix, chat_id) for chat_id, *_ in batch}:
            pipe.expire(name, EXPIRE_SECONDS)
        try:
            pipe.execute()
        except redis.RedisError as error:
            log.warning("%d events could not be sent: %s", len(batch), error)


def coalesce(batch: list[Sent]) -> list[Sent]:
    """Join neighbouring deltas of one part: the last one's `seq` stays, `n` says how many."""
    joined: list[Sent] = []
    last: dict[UUID, dict[str, Json]] = {}
    for chat_id, kind, data in batch:
        before = last.get(chat_id) if kind in LIVE else None
        if before is not None and _same_part(before, data):
            before["text"] = str(before["text"]) + str(data["text"])
            before["seq"], before["n"] = data["seq"], int(str(before["n"])) + 1
            continue
        own = dict(data)
        last[chat_id] = own if kind in LIVE else {}
        joined.append((chat_id, kind, own))
    return joined


def _same_part(one: Mapping[str, Json], other: Mapping[str, Json]) -> bool:
    same = ("state", "of", "index", "history_version", "attempt")
    return (
        "text" in one and "text" in other and all(one.get(name) == other.get(name) for name in same)
    )


def read(
    client: "redis.Redis",
    name: str,
    *,
    after: str | None = None,
    block_seconds: float = 5.0,
    count: int = 500,
) -> Iterator[StreamEvent | None]:
    """Yield events after a cursor, for ever; None whenever nothing came for `block_seconds`.

    A `gap` event comes first if events after the cursor were cut off or have expired.
    """
    cursor = after or START
    if after not in (None, START) and _missed(client, name, cursor):
        yield StreamEvent(cursor, "gap", {"after": cursor})
    while True:
        found = _wait(client, name, cursor, count, block_seconds)
        for event in _events(found):
            cursor = event.cursor
            yield event
        if not found:
            yield None


def _wait(client: "redis.Redis", name: str, cursor: str, count: int, seconds: float) -> Any:
    """What came, or nothing if nothing came for so long."""
    end = time.monotonic() + seconds
    while True:
        block = min(end - time.monotonic(), ANSWER_SECONDS)
        found: Any = client.xread({name: cursor}, count=count, block=max(1, int(block * 1000)))
        if found or time.monotonic() >= end:
            return found or ()


def latest(client: "redis.Redis", name: str) -> str:
    """The cursor behind everything there is now: take it before reading messages, then follow."""
    newest: Any = client.xrevrange(name, count=1)
    return _text(newest[0][0]) if newest else START


def backwards(client: "redis.Redis", name: str, count: int = 200) -> Iterator[StreamEvent]:
    """Yield what is there, the newest first."""
    newest = "+"
    while True:
        rows: Any = client.xrevrange(name, max=newest, count=count)
        for identity, fields in rows:
            yield _event(identity, fields)
        if len(rows) < count:
            return
        newest = f"({_text(rows[-1][0])}"


def _events(found: Any) -> Iterator[StreamEvent]:  # RESP2 and RESP3 differ
    entries = found.values() if isinstance(found, dict) else (entry[1] for entry in found)
    for group in entries:
        rows = group[0] if group and isinstance(group[0], list) else group
        for identity, fields in rows:
            yield _event(identity, fields)


def _event(identity: Any, fields: Mapping[Any, Any]) -> StreamEvent:
    kind, data = json.loads(fields.get(b"e", fields.get("e")))
    return StreamEvent(_text(identity), kind, data)


def _missed(client: "redis.Redis", name: str, cursor: str) -> bool:
    """Whether the cursor's own event is gone: streams are cut off at their old end.

    It may have been the last one that was cut off. Then a reader is sent to the messages for
    nothing, which is better than the other way round.
    """
    return not client.xrange(name, min=cursor, max=cursor, count=1)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
