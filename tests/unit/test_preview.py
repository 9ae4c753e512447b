"""Live parts: how they are numbered, whether deltas are joined by the model's side or by ours."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from rejoinder.core.model import CallDelta, PartDone, ReasoningDelta, StreamItem, TextDelta
from rejoinder.core.parts import Text
from rejoinder.streams import coalesce
from rejoinder.view import ChatView
from tasks.preview import Preview

if TYPE_CHECKING:
    from rejoinder.streams import Sent

CHAT = uuid4()
ONE_BY_ONE: list[StreamItem] = [
    ReasoningDelta(0, "H"),
    ReasoningDelta(0, "m"),
    TextDelta(1, "Hel"),
    TextDelta(1, "lo"),
    TextDelta(1, "!"),
    PartDone(1, Text("Hello!")),
    CallDelta(2, "t", "add"),
    CallDelta(2, "t", "add", "{"),
    CallDelta(2, "t", "add", "}"),
]
JOINED: list[StreamItem] = [
    ReasoningDelta(0, "Hm", 2),
    TextDelta(1, "Hel"),
    TextDelta(1, "lo!", 2),
    PartDone(1, Text("Hello!")),
    CallDelta(2, "t", "add"),
    CallDelta(2, "t", "add", "{}", 2),
]


class Events:
    """What was sent, and whether at once."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.at_once: list[bool] = []

    def add(self, chat_id: UUID, kind: str, data: dict[str, Any], *, now: bool) -> None:
        self.sent.append((chat_id, kind, data))
        self.at_once.append(now)


def shown(items: list[StreamItem]) -> Events:
    events = Events()
    held: Any = SimpleNamespace(
        runtime=SimpleNamespace(events=events),
        fence=SimpleNamespace(history_version=3),
        attempt=1,
        chat_id=CHAT,
    )
    preview = Preview(held)
    for item in items:
        preview.add(item)
    return events


def test_a_joined_delta_counts_as_many_as_it_stands_for() -> None:
    numbers = [(data["seq"], data["n"]) for _, _, data in shown(JOINED).sent]
    assert numbers == [(2, 2), (3, 1), (5, 2), (6, 1), (7, 1), (9, 2)]


def test_the_first_one_is_sent_at_once_and_no_other() -> None:
    assert shown(JOINED).at_once == [True] + 5 * [False]


def test_readers_are_told_the_same_either_way() -> None:
    assert coalesce(shown(JOINED).sent) == coalesce(shown(ONE_BY_ONE).sent)


def test_a_view_sees_no_hole() -> None:
    for items in (JOINED, ONE_BY_ONE):
        view = ChatView()
        for _, kind, data in shown(items).sent:
            view.apply(_Told(kind, data))
        assert [part.text for part in view.live] == ["Hm", "Hello!", "{}"]


class _Told:
    def __init__(self, kind: str, data: Any) -> None:
        self.kind, self.data = kind, data
