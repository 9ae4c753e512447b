"""A chat's events in a Redis stream: written in batches, read by cursor from anywhere.

The stream is a window, not the truth: it is capped and expires, and everything durable in it stands
in Postgres too. A reader that missed something is told so (`gap`) and reads the messages instead.
Writing never blocks a step and never fails one; what Redis does not take is dropped, and the reader
sees the gap. What is read is untrusted: an entry that nobody of us can have written is skipped.
"""

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import Any, TypeAlias
from uuid import UUID

import redis

from rejoinder.batches import RENEW_SECONDS, Batches
from rejoinder.core.parts import Json

log = logging.getLogger(__name__)

BATCH_SECONDS = 0.04
"""How long deltas are collected. People cannot see less, and a pipeline carries many chats."""
URGENT_SECONDS = 0.015
"""How long even the urgent ones are collected, on average, if others were sent just before."""
HURRY_SECONDS = 0.1
MAX_WAITING = 50_000
"""Events held back while Redis is away; beyond that the oldest are dropped."""
ANSWER_SECONDS = 2.0
"""How long Redis may hold back an answer: less than redis-py waits for one (5 s, by default)."""
START = "0-0"
PART = "part"
LIVE = frozenset({PART, "compaction"})
"""Events that may hold deltas of a text, to be joined."""


Sent: TypeAlias = tuple[UUID, str, Mapping[str, Json]]
"""An event on its way: whose, of which kind, and what it says."""
_ENCODER = json.JSONEncoder(separators=(",", ":"))
_NEEDS: Mapping[str, Mapping[str, type]] = {
    PART: dict.fromkeys(("index", "history_version", "attempt", "seq", "n"), int) | {"of": str},
    "status": {"status": str},
    "message": {"id": int},
    "history_reset": {"from": int},
    "queue": {"length": int},
    "title": {"title": str},
    "labels": {"labels": dict},
    "tool": {"call_id": str, "state": str},
    "compaction": {"state": str},
}
"""What readers rely on, by kind."""
_NEEDS_OF_PART: Mapping[str, Mapping[str, type]] = {
    "text": {"text": str},
    "reasoning": {"text": str},
    "tool_call": {"text": str, "call_id": str, "name": str},
    "end": {},
}
_IF_THERE: Mapping[str, type] = {"version": int, "ids": list, "added": list}
_NOBODY, _URGENT, _ALL = range(3)
"""Whom the writing thread listens to."""


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
    """Sends events in the order they were added, in batches, from a thread of its own.

    Whoever adds wakes that thread only if it waits for something: while it sends, and for a moment
    after, everybody just leaves what is to be told.
    """

    def __init__(self, client: "redis.Redis", prefix: str) -> None:
        """Start the thread with the first event."""
        self._batches = Batches(client)
        self._prefix = prefix
        self._waiting: deque[Sent | threading.Event] = deque(maxlen=MAX_WAITING)
        """Events, and among them who wants to know that all before are sent."""
        self._lock = threading.Lock()
        self._bell = threading.Event()
        self._heeds = _NOBODY
        self._urgent = False
        self._hurried = threading.Event()
        self._sending = threading.Lock()
        self._closed = False
        self._sent_at = deque([-inf, -inf], maxlen=2)
        """The last two times: who was silent may send twice in a row, such as the first word of an
        answer just after the message that it answers."""
        self._thread: threading.Thread | None = None

    def add(self, chat_id: UUID, kind: str, data: Mapping[str, Json], *, now: bool = True) -> None:
        """Add an event; `now` sends it (and all before it) without waiting for the batch.

        The data is the writer's from here on: nobody may change it.
        """
        self._waiting.append((chat_id, kind, data))
        if now:
            self._urgent = True
        if self._heeds >= (_URGENT if now else _ALL) and not self._bell.is_set():
            self._bell.set()
        if self._thread is None:
            self._start()

    def hurry(self, seconds: float = HURRY_SECONDS) -> None:
        """Have what is waiting sent now, before others, in other processes, have more to tell.

        Waits for it a little; if Redis does not answer, the order is not worth more.
        """
        if not self._waiting and not self._sending.locked():
            return  # or the next ones, which nobody waits for, would be hurried
        sent = threading.Event()
        self._waiting.append(sent)
        self._hurried.set()
        self._bell.set()
        sent.wait(seconds)

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="events", daemon=True)
                self._thread.start()

    def flush(self) -> None:
        """Send what is waiting, now, from this thread, all at once."""
        with self._sending:
            self._urgent = False
            batch, listeners = self._take()
            self._send(batch)
            for listener in listeners:
                listener.set()

    def close(self) -> None:
        """Send the rest and end the thread."""
        self._closed = True
        self._hurried.set()
        self._bell.set()
        if self._thread is not None:
            self._thread.join(timeout=2)
        self.flush()
        with suppress(redis.RedisError):
            self._batches.close()

    def _run(self) -> None:
        while not self._closed:
            self._hurried.wait(self._sent_at[0] + 2 * URGENT_SECONDS - time.monotonic())
            if not self._waiting:
                self._listen(_ALL, RENEW_SECONDS)
            if self._waiting and not self._urgent:
                self._listen(_URGENT, BATCH_SECONDS)
            self._hurried.clear()
            self.flush()
            self._sent_at.append(time.monotonic())

    def _listen(self, heeds: int, seconds: float) -> None:
        """Wait until somebody adds what is heeded here; what came just before counts, too."""
        self._heeds = heeds
        if not (self._urgent or self._hurried.is_set() or (heeds == _ALL and self._waiting)):
            self._bell.wait(seconds)
        self._heeds = _NOBODY
        self._bell.clear()

    def _take(self) -> tuple[list[Sent], list[threading.Event]]:
        taken = [self._waiting.popleft() for _ in range(len(self._waiting))]
        events = [each for each in taken if not isinstance(each, threading.Event)]
        return coalesce(events), [each for each in taken if isinstance(each, threading.Event)]

    def _send(self, batch: list[Sent]) -> None:
        try:
            self._batches.send(self._entries(batch))
        except redis.RedisError as error:
            log.warning("%d events could not be sent: %s", len(batch), error)

    def _entries(self, batch: list[Sent]) -> Iterator[tuple[str, str]]:
        for chat_id, kind, data in batch:
            try:
                yield key_of(self._prefix, chat_id), _ENCODER.encode((kind, data))
            except (TypeError, ValueError, RuntimeError) as error:  # a tool may say anything
                log.warning("An event of kind %s could not be sent: %s", kind, error)


def coalesce(batch: list[Sent]) -> list[Sent]:
    """Join neighbouring deltas of one part: the last one's `seq` stays, `n` says how many."""
    joined: list[Sent] = []
    last: dict[UUID, tuple[tuple[Json, ...], dict[str, Json]] | None] = {}
    for chat_id, kind, data in batch:
        if kind not in LIVE or "text" not in data:
            last[chat_id] = None
            joined.append((chat_id, kind, data))
            continue
        part, before = _part_of(data), last.get(chat_id)
        if before is not None and before[0] == part:
            whole = before[1]
            whole["text"] = str(whole["text"]) + str(data["text"])
            whole["seq"], whole["n"] = data["seq"], int(str(whole["n"])) + int(str(data["n"]))
        else:
            whole = dict(data)
            last[chat_id] = part, whole
            joined.append((chat_id, kind, whole))
    return joined


def _part_of(data: Mapping[str, Json]) -> tuple[Json, ...]:
    """What two deltas of the same part have in common."""
    get = data.get
    return get("state"), get("of"), get("index"), get("history_version"), get("attempt")


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
        for identity, fields in _entries(found):
            cursor = _text(identity)
            if (event := _event(name, cursor, fields)) is not None:
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
            if (event := _event(name, _text(identity), fields)) is not None:
                yield event
        if len(rows) < count:
            return
        newest = f"({_text(rows[-1][0])}"


def _entries(found: Any) -> Iterator[tuple[Any, Mapping[Any, Any]]]:  # RESP2 and RESP3 differ
    for group in found.values() if isinstance(found, dict) else (entry[1] for entry in found):
        yield from group[0] if group and isinstance(group[0], list) else group


def _event(name: str, cursor: str, fields: Mapping[Any, Any]) -> StreamEvent | None:
    """An entry as an event; None: it cannot be one."""
    try:
        kind, data = json.loads(fields.get(b"e", fields.get("e")))
        _check(kind, data)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        _warn(name, cursor, type(error).__name__)
        return None
    return StreamEvent(cursor, kind, data)


def _check(kind: Any, data: Any) -> None:
    """Raise if this is no event that readers can take."""
    needs = {**_NEEDS.get(kind, {}), **(_NEEDS_OF_PART[data["of"]] if kind == PART else {})}
    needs |= {name: its for name, its in _IF_THERE.items() if name in data}
    fits = isinstance(kind, str) and isinstance(data, dict)
    if not fits or not all(isinstance(data[name], its) for name, its in needs.items()):
        raise TypeError(kind)
    if not all(isinstance(entry, dict) and "id" in entry for entry in data.get("added", ())):
        raise TypeError("added")


@lru_cache(maxsize=1000)  # once for each, however often it is read
def _warn(name: str, cursor: str, why: str) -> None:
    log.warning("Entry %s of stream %s cannot be read and is skipped: %s", cursor, name, why)


def _missed(client: "redis.Redis", name: str, cursor: str) -> bool:
    """Whether the cursor's own event is gone: streams are cut off at their old end.

    It may have been the last one that was cut off. Then a reader is sent to the messages for
    nothing, which is better than the other way round.
    """
    return not client.xrange(name, min=cursor, max=cursor, count=1)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
