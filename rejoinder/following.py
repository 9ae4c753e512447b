"""A chat from its beginning and on, live: history first, then events, nothing missed or doubled.

The rows are read first and the stream's window after them, so that whatever was committed between
the two is in the window. Changes are told apart by the chat's version, messages also by their id;
live parts that a stored message has replaced are left out. If the window has moved on (`gap`), or
is silent while the chat is busy, the rows are read again, and what is no longer in them is taken
back (`history_reset`). A `ChatView` that is given all of it shows what the rows say.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from celery.exceptions import TimeoutError as NoAnswer

from rejoinder.core.effects import EventKind
from rejoinder.core.messages import Visibility
from rejoinder.core.state import BUSY
from rejoinder.streams import StreamEvent
from rejoinder.view import FIELDS, GAP, PART, PREVIEW_RESET, WRITING

if TYPE_CHECKING:
    from rejoinder.client import Client

AT_ONCE = 0.001
"""Seconds to wait for events that are there already."""
PAGE = 200


class Follower:
    """What one reader of one chat has been given so far."""

    def __init__(self, client: "Client", chat_id: str | UUID, idle_seconds: float) -> None:
        """Begin with nothing."""
        self._client = client
        self._chat_id = chat_id
        self._idle = idle_seconds
        self._seen: set[int] = set()
        self._known = 0  # changes up to this version were in the rows
        self._heard: dict[str, Any] = {}  # the newest that was given of the chat's state
        self._previewing = False
        self._resumed = False  # somebody else knows what was given before

    def events(self, after: str | None) -> Iterator[StreamEvent | None]:
        """Give history and then events for ever, or only what came after a cursor."""
        cursor = after
        self._resumed = after is not None
        if cursor is None:
            self._heard["queue"] = []
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

    def _rows(self, cursor: str) -> Iterator[StreamEvent]:
        """Give what stands in the rows and was not given yet; the version read first is too low."""
        chat = self._client.get_chat(self._chat_id)
        version = {"version": chat["version"]}
        stored = list(self._messages())
        gone = self._seen - {message["id"] for message in stored}
        if gone or self._resumed:
            first = 0 if self._resumed else min(gone)
            self._resumed = False
            yield from self._told(
                [_event(cursor, EventKind.HISTORY_RESET, {"from": first}, version)]
            )
        fresh = [message for message in stored if message["id"] not in self._seen]
        yield from self._told(_event(cursor, EventKind.MESSAGE, m, version) for m in fresh)
        yield from self._state(chat, cursor)

    def _messages(self) -> Iterator[Mapping[str, Any]]:
        page: int | None = 0
        while page is not None:
            found = self._client.get_messages(self._chat_id, after=page, limit=PAGE)
            yield from found["messages"]
            page = found["next"]

    def _state(self, chat: Mapping[str, Any], cursor: str) -> Iterator[StreamEvent]:
        if chat["version"] <= self._known:
            return
        self._known = chat["version"]
        heard, told = self._heard, {"version": chat["version"]}
        ids = [each["id"] for each in chat["queue"]]
        if ids != heard.get("queue"):
            queue = {"length": len(ids), "ids": ids, "added": chat["queue"]}
            yield from self._told([_event(cursor, EventKind.QUEUE, queue, told)])
        state = {name: chat[name] for name in FIELDS}
        if any(heard.get(name, ...) != value for name, value in state.items()):
            failed = state["last_error"] and heard.get("last_error") != state["last_error"]
            yield from self._told([_event(cursor, EventKind.STATUS, state, told)])
            if failed:
                yield _event(cursor, EventKind.ERROR, state["last_error"], told)
            if chat["asked"]:
                yield _event(cursor, EventKind.ACTION_REQUIRED, chat["asked"], told)

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
            if self._is_new(event):
                kept.append(event)
        return kept, end

    def _look_again(self, cursor: str) -> Iterator[StreamEvent]:
        """Read the rows of a chat that is busy and silent: an event may have been lost."""
        if self._heard.get("status") not in BUSY:
            return
        try:
            chat = self._client.get_chat(self._chat_id)
            if chat["version"] > self._known:
                yield from self._rows(cursor)
        except NoAnswer:
            return  # no worker at the moment: the stream is all there is

    def _is_new(self, event: StreamEvent) -> bool:
        if event.kind == EventKind.MESSAGE:
            hidden = event.data.get("visibility") == Visibility.MODEL
            if hidden or event.data["id"] in self._seen:
                return False
        version = event.data.get("version")
        return version is None or version > self._known

    def _told(self, events: Iterator[StreamEvent] | list[StreamEvent]) -> Iterator[StreamEvent]:
        """Give events out, and remember that."""
        for event in events:
            if event.kind == EventKind.MESSAGE:
                self._seen.add(event.data["id"])
            elif event.kind in (EventKind.STATUS, EventKind.TITLE, EventKind.LABELS):
                self._heard |= {name: event.data[name] for name in FIELDS if name in event.data}
            elif event.kind == EventKind.QUEUE:
                self._heard["queue"] = event.data.get("ids")
            elif event.kind == EventKind.HISTORY_RESET:
                self._seen = {each for each in self._seen if each < event.data["from"]}
            if event.kind == PART:
                self._previewing = True
            elif _ends_parts(event):
                self._previewing = False
            yield event


def _event(
    cursor: str, kind: str, data: Mapping[str, Any], version: Mapping[str, Any]
) -> StreamEvent:
    return StreamEvent(cursor, kind, {**data, **version})


def _ends_parts(event: StreamEvent) -> bool:
    if event.kind == EventKind.STATUS:
        return event.data["status"] not in WRITING
    return event.kind in (EventKind.MESSAGE, EventKind.HISTORY_RESET, PREVIEW_RESET)
