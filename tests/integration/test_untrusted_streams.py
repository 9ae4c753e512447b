"""What stands in a chat's Redis stream is untrusted: nobody stops at what cannot be read."""

import json
import logging
from collections.abc import Iterator
from uuid import UUID

import pytest
import redis
from sqlalchemy import Engine
from uuid_utils.compat import uuid7

from models import machine
from models.sweep import sweep
from rejoinder import streams
from rejoinder.client import Client
from rejoinder.core.messages import NewMessage
from rejoinder.core.parts import Text
from rejoinder.streams import EventWriter, StreamEvent, backwards, key_of, read
from rejoinder.view import ChatView
from tasks.live import what_was_written
from tests.chats import DEAD_AFTER, World, said
from tests.conftest import RedisSpace
from tests.integration.racing import silence

PART = {"of": "text", "index": 0, "text": "b", "history_version": 1, "attempt": 0}
UNREADABLE = {
    "no JSON": b"\xff\x00{",
    "no pair": b'{"a": 1}',
    "a kind that is no name": b"[1, {}]",
    "data that is no object": b'["part", null]',
    "too deep": b"[" * 100_000,
    "an empty part": b'["part", {}]',
    "numbers that are none": json.dumps(["part", {**PART, "seq": "2", "n": 1}]).encode(),
    "a part without text": json.dumps(["part", {**PART, "text": None, "seq": 2, "n": 1}]).encode(),
    "a part of nothing": json.dumps(["part", {**PART, "of": [], "seq": 2, "n": 1}]).encode(),
    "a call of nothing": json.dumps(
        ["part", {**PART, "of": "tool_call", "seq": 2, "n": 1}]
    ).encode(),
    "a status without one": b'["status", {}]',
    "a status that is none": b'["status", {"status": ["x"]}]',
    "a message without id": b'["message", {}]',
    "a reset to nowhere": b'["history_reset", {}]',
    "a queue of nothing": b'["queue", {"ids": 3}]',
    "a title of nothing": b'["title", {}]',
    "labels of nothing": b'["labels", {"labels": 1}]',
    "a version that is none": b'["preview_reset", {"version": "x"}]',
}


class Stream:
    """A chat's stream with an entry in it that nobody of us has written."""

    def __init__(self, space: RedisSpace, chat_id: UUID) -> None:
        self.client = redis.Redis.from_url(space.url)
        self.prefix, self.chat_id = space.prefix, chat_id
        self.name = key_of(space.prefix, chat_id)
        self.writer = EventWriter(self.client, space.prefix)

    def write(self, kind: str, **data: object) -> None:
        self.writer.add(self.chat_id, kind, data, now=False)  # type: ignore[arg-type]
        self.writer.flush()

    def part(self, seq: int, text: str, version: int = 1) -> None:
        self.write("part", **{**PART, "text": text, "history_version": version, "seq": seq, "n": 1})

    def spoil(self, entry: bytes) -> None:
        self.client.xadd(self.name, {"e": entry})

    def read(self, after: str | None = None) -> list[StreamEvent]:
        found: list[StreamEvent] = []
        for event in read(self.client, self.name, after=after, block_seconds=0.01):
            if event is None:
                return found
            found.append(event)
        raise AssertionError


@pytest.fixture
def stream(redis_space: RedisSpace) -> Iterator[Stream]:
    made = Stream(redis_space, uuid7())
    yield made
    made.writer.close()
    made.client.close()


@pytest.mark.parametrize("entry", UNREADABLE.values(), ids=UNREADABLE)
def test_an_unreadable_entry_is_skipped_and_logged_once(
    stream: Stream, entry: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    stream.write("status", status="running")
    stream.part(1, "One. ")
    stream.spoil(entry)
    stream.part(2, "Two.")
    for _ in range(3):
        assert [each.kind for each in stream.read()] == ["status", "part", "part"]
        assert len([*backwards(stream.client, stream.name)]) == 3
    view = ChatView()
    for event in stream.read():
        view.apply(event)
    assert view.live_text == "One. Two."
    written = what_was_written(stream.client, stream.prefix, stream.chat_id, 1)
    assert written is not None
    assert written.parts == (Text("One. Two."),)
    assert [each.levelno for each in caplog.records] == [logging.WARNING]


def test_a_reader_behind_an_unreadable_entry_does_not_read_it_for_ever(stream: Stream) -> None:
    stream.part(1, "One.")
    stream.spoil(b"?")
    stream.client.xadd(stream.name, {"other": b"field"})
    asked: list[str] = []

    class Asked:
        def xread(self, names: dict[str, str], **options: int) -> object:
            asked.extend(names.values())
            return stream.client.xread(names, **options)  # type: ignore[arg-type]

    waiting = read(Asked(), stream.name, block_seconds=0.01)  # type: ignore[arg-type]
    assert next(waiting) is not None
    assert next(waiting) is None
    assert next(waiting) is None
    assert len(set(asked)) == 2, "it goes on behind what it could not read"


def test_one_chat_whose_words_cannot_be_rebuilt_does_not_stop_the_others(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(engine)
    worker_id = world.worker()
    chats = [world.new() for _ in range(5)]
    for chat in chats:
        world.claim(chat.id, worker_id)
        world.do(machine.interrupt, chat.id)
    silence(world, worker_id)

    def rebuild(chat_id: UUID, _: int) -> NewMessage | None:
        if chat_id == chats[0].id:
            raise KeyError("seq")
        return said("kept")

    swept = sweep(engine, dead_after=DEAD_AFTER, rebuild=rebuild)
    assert {each.chat_id for each in swept.effects} == {chat.id for chat in chats}
    assert {world.row(chat.id)["status"] for chat in chats} == {"waiting"}
    kept = world.read("SELECT chat_id FROM rejoinder.messages WHERE role = 'assistant'")
    assert {row["chat_id"] for row in kept} == {chat.id for chat in chats[1:]}
    assert sum(each.levelno >= logging.ERROR for each in caplog.records) == 1


def test_a_follower_goes_on_behind_an_unreadable_entry(
    stream: Stream, redis_space: RedisSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = {"version": 3, "queue": [], "asked": None, "status": "running", "last_error": None}
    chat |= dict.fromkeys(("turn_id", "archived", "model", "title", "labels", "action"))
    chat |= dict.fromkeys(("deadline", "run_after", "attempt", "retry_state"))
    client = Client(broker_url=redis_space.url, prefix=redis_space.prefix)
    monkeypatch.setattr(client, "get_chat", lambda _: chat)
    monkeypatch.setattr(client, "get_messages", lambda *_, **__: {"messages": [], "next": None})
    for entry in UNREADABLE.values():
        stream.spoil(entry)
    following = client.follow(stream.chat_id, idle_seconds=0.01)
    assert next(following).kind == "status"  # type: ignore[union-attr]
    stream.part(1, "One.", version=3)
    for entry in UNREADABLE.values():
        stream.spoil(entry)
    stream.part(2, "Two.", version=3)
    heard = [event for _ in range(4) if (event := next(following)) is not None]
    assert [event.data["text"] for event in heard if event.kind == streams.PART] == ["One.", "Two."]
    client.close()
