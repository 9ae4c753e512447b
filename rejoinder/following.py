"""A chat from its beginning and on, live: history first, then events, nothing missed or doubled.

The rows are read first and the stream's window after them, so that whatever was committed between
the two is in the window. Messages are told apart by id, other changes by the chat's version; live
parts that a stored message has replaced are left out. If the window has moved on (`gap`), or is
silent while the chat is busy, the rows are read again. See `Client.follow`.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from celery.exceptions import TimeoutError as NoAnswer

from rejoinder.core.effects import EventKind
from rejoinder.core.messages import Approval, CallKind, Visibility
from rejoinder.core.state import BUSY, Status
from rejoinder.streams import StreamEvent

if TYPE_CHECKING:
    from rejoinder.client import Client

AT_ONCE = 0.001
"""Seconds to wait for events that are there already."""
PAGE = 200
PART, GAP, PREVIEW_RESET = "part", "gap", "preview_reset"
_KEEPS_PARTS = {Status.RUNNING, Status.INTERRUPTING}
"""Live parts before a change to one of these still count."""


class Follower:
    """What one reader of one chat has been given so far."""

    def __init__(self, client: "Client", chat_id: str | UUID, idle_seconds: float) -> None:
        """Begin with nothing."""
        self._client = client
        self._chat_id = chat_id
        self._idle = idle_seconds
        self._seen: set[int] = set()
        self._known = 0  # changes up to this version were in the rows
        self._status: str | None = None
        self._in_rows: str | None = None
        self._previewing = False

    def events(self, after: str | None) -> Iterator[StreamEvent | None]:
        """Give history and then events for ever, or only what came after a cursor."""
        cursor = after
        if cursor is None:
            cursor = self._client.cursor(self._chat_id)
            yield from self._rows(cursor)
            window, end = self._window()
            yield from self._told(window)
            cursor = end or cursor
        for event in self._client.stream(self._chat_id, after=cursor, idle_seconds=self._idle):
            if event is None:
                yield from self._look_again(cursor)
                yield None
                continue
            cursor = event.cursor
            if event.kind == GAP:
                yield event
                self._previewing = False
                yield from self._rows(cursor)
            elif self._is_new(event):
                yield from self._told([event])
            elif event.kind == EventKind.MESSAGE and self._previewing:
                # Its row was read before its event came, and then its live parts.
                self._previewing = False
                yield StreamEvent(cursor, PREVIEW_RESET, {})
            elif event.kind == EventKind.STATUS and self._status != self._in_rows:
                # A claim, told late, seemed to undo what the rows had said.
                self._status = self._in_rows
                yield StreamEvent(cursor, EventKind.STATUS, {"status": self._in_rows})

    def _rows(self, cursor: str) -> Iterator[StreamEvent]:
        """Give what stands in the rows and was not given yet; the version read first is too low."""
        chat = self._client.get_chat(self._chat_id)
        page: int | None = 0
        while page is not None:
            found = self._client.get_messages(self._chat_id, after=page, limit=PAGE)
            fresh = [m for m in found["messages"] if m["id"] not in self._seen]
            yield from self._told(StreamEvent(cursor, EventKind.MESSAGE, m) for m in fresh)
            page = found["next"]
        yield from self._state(chat, cursor)

    def _state(self, chat: Mapping[str, Any], cursor: str) -> Iterator[StreamEvent]:
        if chat["version"] < self._known:
            return
        newer = chat["version"] > self._known
        self._known, self._in_rows = chat["version"], chat["status"]
        version = {"version": chat["version"]}
        if newer and chat["queue_length"]:
            yield StreamEvent(cursor, EventKind.QUEUE, {"length": chat["queue_length"], **version})
        if newer and (asked := _asked(chat)):
            yield StreamEvent(cursor, EventKind.ACTION_REQUIRED, {**asked, **version})
        if chat["status"] != self._status:
            self._status = chat["status"]
            yield StreamEvent(cursor, EventKind.STATUS, {"status": chat["status"], **version})
            if chat["last_error"]:
                yield StreamEvent(cursor, EventKind.ERROR, {**chat["last_error"], **version})

    def _window(self) -> tuple[list[StreamEvent], str | None]:
        """Find what the stream holds beyond the rows: new changes, and parts that still count."""
        kept: list[StreamEvent] = []
        end: str | None = None
        for event in self._client.stream(self._chat_id, idle_seconds=AT_ONCE):
            if event is None:
                break
            end = event.cursor
            if _ends_parts(event):
                kept = [each for each in kept if "version" in each.data]
            if self._is_new(event) and (not _is_claim(event) or _has_status(kept)):
                kept.append(event)
        return kept, end

    def _look_again(self, cursor: str) -> Iterator[StreamEvent]:
        """Read the rows of a chat that is busy and silent: an event may have been lost."""
        if self._status not in BUSY:
            return
        try:
            chat = self._client.get_chat(self._chat_id)
            if (chat["version"], chat["status"]) != (self._known, self._status):
                yield from self._rows(cursor)
        except NoAnswer:
            return  # no worker at the moment: the stream is all there is

    def _is_new(self, event: StreamEvent) -> bool:
        if event.kind == EventKind.MESSAGE:
            hidden = event.data.get("visibility") == Visibility.MODEL
            return not hidden and event.data["id"] not in self._seen
        version = event.data.get("version")
        return version is None or version > self._known

    def _told(self, events: Iterator[StreamEvent] | list[StreamEvent]) -> Iterator[StreamEvent]:
        """Give events out, and remember that."""
        for event in events:
            if event.kind == EventKind.MESSAGE:
                self._seen.add(event.data["id"])
            elif event.kind == EventKind.STATUS:
                self._status = event.data["status"]
            if event.kind == PART:
                self._previewing = True
            elif _ends_parts(event):
                self._previewing = False
            yield event


def _asked(chat: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the chat waits for, as the event said that was told when it began to."""
    if not chat.get("action"):  # workers of an earlier release do not say
        return None
    calls = [
        {**call, "approval": call["approval"] == Approval.WANTED}
        for call in chat["open_calls"]
        if call["kind"] == CallKind.CLIENT or call["approval"] == Approval.WANTED
    ]
    return {**chat["action"], "calls": calls}


def _is_claim(event: StreamEvent) -> bool:
    """A claim is told without a version: where it belongs shows from what is around it."""
    return event.kind == EventKind.STATUS and "version" not in event.data


def _has_status(events: list[StreamEvent]) -> bool:
    return any(event.kind == EventKind.STATUS for event in events)


def _ends_parts(event: StreamEvent) -> bool:
    if event.kind == EventKind.STATUS:
        return event.data["status"] not in _KEEPS_PARTS
    return event.kind in (EventKind.MESSAGE, EventKind.HISTORY_RESET, PREVIEW_RESET)
