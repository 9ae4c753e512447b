"""Readers of random histories: what they rebuild from events alone must be what the rows say.

One reader hears every event in the order of the commits. A second one begins again from the rows
now and then, and hears some older events twice. In the end a third one hears all of them in any
order, some of them twice: events of one chat come from several processes.
"""

from __future__ import annotations

import json
import random
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from models import reading
from models.engine import transaction
from rejoinder.streams import StreamEvent
from rejoinder.view import ChatView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from uuid import UUID

    from sqlalchemy import Engine

    from rejoinder.core.effects import Effects, Event

RELOAD = 7
HEARD_AGAIN = 5


class Readers:
    """Those who follow the chats, and what they were told."""

    def __init__(self, engine: Engine, agree: Callable[[str, object, object], None]) -> None:
        """Begin with nobody."""
        self._engine = engine
        self._agree = agree
        self._told: dict[UUID, list[StreamEvent]] = {}
        self._faithful: dict[UUID, ChatView] = {}
        self._forgetful: dict[UUID, ChatView] = {}
        self._touched: set[UUID] = set()
        self._looks = 0

    def hear(self, *committed: Effects) -> None:
        """Tell the events of committed transitions."""
        for effects in committed:
            self.tell(effects.chat_id, effects.snapshot_version, effects.events)

    def tell(self, chat_id: UUID, version: int, events: Iterable[Event]) -> None:
        """Tell events, as they travel: as JSON, with the chat's version."""
        self._touched.add(chat_id)
        for event in events:
            data = json.loads(json.dumps({**event.data, "version": version}))
            told = StreamEvent("", str(event.kind), data)
            self._told.setdefault(chat_id, []).append(told)
            for views in (self._faithful, self._forgetful):
                views.setdefault(chat_id, ChatView()).apply(told)

    def moved(self, chat_id: UUID) -> None:
        """A day has passed for a chat: what was told of its moments would be told so now."""
        told = [StreamEvent("", e.kind, _a_day_ago(e.data)) for e in self._told[chat_id]]
        self._told[chat_id] = told
        self._faithful[chat_id] = ChatView()
        for event in told:
            self._faithful[chat_id].apply(event)
        self._forgetful[chat_id].load(*self._read(chat_id))

    def compare(self) -> None:
        """Compare what the readers see of chats that had news with the rows."""
        self._looks += 1
        while self._touched:
            chat_id = self._touched.pop()
            chat, messages = self._read(chat_id)
            self._same("the reader", self._faithful[chat_id], chat, messages)
            self._same("the one who reloads", self._forgetful[chat_id], chat, messages)
            if self._looks % RELOAD == 0:
                self._forgetful[chat_id].load(chat, messages)
                for event in self._told[chat_id][-HEARD_AGAIN:]:
                    self._forgetful[chat_id].apply(event)
                self._same("the one who reloaded", self._forgetful[chat_id], chat, messages)

    def shuffle(self) -> None:
        """Let one hear everything in any order, and some of it twice."""
        chance = random.Random(len(self._told))
        for chat_id, told in self._told.items():
            view = ChatView()
            for event in chance.sample(told, len(told)) + chance.choices(told, k=10):
                view.apply(event)
            self._same("the one who hears late", view, *self._read(chat_id))

    def _read(self, chat_id: UUID) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        with transaction(self._engine) as tx:
            chat = reading.get_chat(tx, chat_id)
            messages = reading.get_messages(tx, chat_id, limit=reading.MOST)["messages"]
        return json.loads(json.dumps(chat)), json.loads(json.dumps(messages))

    def _same(
        self, who: str, view: ChatView, chat: dict[str, Any], messages: list[dict[str, Any]]
    ) -> None:
        self._agree(f"{who}: the state", {n: chat[n] for n in view.state}, view.state)
        self._agree(f"{who}: the queue", chat["queue"], view.queue)
        self._agree(f"{who}: what is asked", chat["asked"], _asked(view))
        for number, message in enumerate(messages):
            seen = view.messages[number] if number < len(view.messages) else {}
            self._agree(f"{who}: message {number}", message, seen)
        self._agree(f"{who}: the messages", len(messages), len(view.messages))


def _a_day_ago(data: Any) -> Any:
    match data:
        case dict():
            return {
                name: str(datetime.fromisoformat(value) - timedelta(days=1)).replace(" ", "T")
                if name in ("deadline", "run_after") and value
                else _a_day_ago(value)
                for name, value in data.items()
            }
        case list():
            return [_a_day_ago(each) for each in data]
    return data


def _asked(view: ChatView) -> dict[str, Any] | None:
    """What is asked; what was spent of a budget does not stand in the rows."""
    if view.asked is None:
        return None
    return {name: value for name, value in view.asked.items() if name in ("kind", "calls")}
