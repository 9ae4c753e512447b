"""Histories that this process has just read or written, for the next step of the same turn.

A history is what it was as long as the chat's `history_version` is: a step that finds the same
version reads nothing, however long the chat is. Only turns that go on are kept, and only so many:
what is not here is read from the rows.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from uuid import UUID

from models import snapshot
from rejoinder.core.decide import Entry
from rejoinder.core.messages import NewMessage, Visibility

MOST_ENTRIES = 50_000
"""Messages that are kept in all, the last used: some 50 MB of short ones."""


class Histories:
    """By chat: a version, and what the model is shown of it."""

    def __init__(self, most: int = MOST_ENTRIES) -> None:
        """Begin with nothing."""
        self._most = most
        self._lock = threading.Lock()
        self._kept: OrderedDict[UUID, tuple[int, Sequence[Entry]]] = OrderedDict()
        self._entries = 0

    def get(self, chat_id: UUID, version: int) -> Sequence[Entry] | None:
        """What the model is shown of this version, if it is here."""
        kept = self._kept.get(chat_id)
        return kept[1] if kept is not None and kept[0] == version else None

    def keep(self, chat_id: UUID, version: int, entries: Sequence[Entry]) -> None:
        """Keep this one, instead of an older one of the same chat."""
        with self._lock:
            self._drop(chat_id)
            self._kept[chat_id] = (version, entries)
            self._entries += len(entries)
            while self._entries > self._most:
                self._drop(next(iter(self._kept)))

    def drop(self, chat_id: UUID) -> None:
        """Forget a chat."""
        with self._lock:
            self._drop(chat_id)

    def _drop(self, chat_id: UUID) -> None:
        kept = self._kept.pop(chat_id, None)
        if kept is not None:
            self._entries -= len(kept[1])


def longer(entries: Sequence[Entry], by: Iterable[tuple[int, NewMessage]]) -> tuple[Entry, ...]:
    """A history with what was added to it, as far as the model is shown it."""
    shown = (each for each in by if each[1].visibility is not Visibility.USER)
    return (*entries, *(snapshot.added(message_id, message) for message_id, message in shown))
