"""Histories that this process has just read or written, for the next step of the same turn.

A history is what it was as long as the chat's `history_version` is: a step that finds the same
version reads nothing, however long the chat is. Only turns that go on are kept, only until the next
step takes theirs, and not for long: another process may have taken the chat. What is not here is
read from the rows.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from uuid import UUID

from models import snapshot
from rejoinder.core.decide import Entry
from rejoinder.core.messages import NewMessage, Visibility

MOST_ENTRIES = 50_000
"""Messages that are kept in all, the last used: some 50 MB of short ones."""
MOST_SECONDS = 60.0
"""For how long a history waits for its step."""


class Histories:
    """By chat: a version, what the model is shown of it, and since when it is here."""

    def __init__(self, most: int = MOST_ENTRIES) -> None:
        """Begin with nothing."""
        self._most = most
        self._lock = threading.Lock()
        self._kept: OrderedDict[UUID, tuple[int, Sequence[Entry], float]] = OrderedDict()
        self._entries = 0

    def take(self, chat_id: UUID, version: int) -> Sequence[Entry] | None:
        """What the model is shown of this version, if it is here; it no longer is."""
        with self._lock:
            kept = self._drop(chat_id)
        return kept[1] if kept is not None and kept[0] == version else None

    def keep(self, chat_id: UUID, version: int, entries: Sequence[Entry]) -> None:
        """Keep this one, instead of an older one of the same chat."""
        now = time.monotonic()
        with self._lock:
            self._drop(chat_id)
            self._kept[chat_id] = (version, entries, now)
            self._entries += len(entries)
            self._expire(now)

    def expire(self) -> None:
        """Forget what nobody came for."""
        with self._lock:
            self._expire(time.monotonic())

    def _expire(self, now: float) -> None:
        while self._kept:
            oldest = next(iter(self._kept))
            if self._entries <= self._most and now - self._kept[oldest][2] < MOST_SECONDS:
                return
            self._drop(oldest)

    def _drop(self, chat_id: UUID) -> tuple[int, Sequence[Entry], float] | None:
        kept = self._kept.pop(chat_id, None)
        if kept is not None:
            self._entries -= len(kept[1])
        return kept


def longer(entries: Sequence[Entry], by: Iterable[tuple[int, NewMessage]]) -> tuple[Entry, ...]:
    """A history with what was added to it, as far as the model is shown it."""
    shown = (each for each in by if each[1].visibility is not Visibility.USER)
    return (*entries, *(snapshot.added(message_id, message) for message_id, message in shown))
