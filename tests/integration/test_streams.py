"""A chat's events in a real Valkey: in order, in batches, resumable, honest about gaps."""

import threading
import time
from collections.abc import Iterator
from itertools import islice
from uuid import uuid4

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from rejoinder import batches, streams
from rejoinder.batches import Batches
from rejoinder.streams import EventWriter, StreamEvent, coalesce, key_of, latest, read
from tests.conftest import RedisSpace

CHAT = uuid4()


@pytest.fixture
def client(redis_space: RedisSpace) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_space.url) as connected:
        yield connected


@pytest.fixture
def writer(client: redis.Redis, redis_space: RedisSpace) -> Iterator[EventWriter]:
    made = EventWriter(client, redis_space.prefix)
    yield made
    made.close()


def events(
    client: redis.Redis, name: str, count: int, after: str | None = None
) -> list[StreamEvent]:
    found = islice((e for e in read(client, name, after=after, block_seconds=2) if e), count)
    return list(found)


def part(seq: int, text: str, index: int = 0) -> dict[str, object]:
    return {
        "of": "text",
        "index": index,
        "text": text,
        "history_version": 1,
        "attempt": 0,
        "seq": seq,
        "n": 1,
    }


def test_events_come_in_the_order_they_were_added(
    client: redis.Redis, writer: EventWriter, redis_space: RedisSpace
) -> None:
    for number in range(200):
        writer.add(CHAT, "message", {"id": number}, now=number % 3 == 0)
    name = key_of(redis_space.prefix, CHAT)
    assert [e.data["id"] for e in events(client, name, 200)] == list(range(200))
    assert client.ttl(name) > 0


def test_a_reader_resumes_from_its_cursor(
    client: redis.Redis, writer: EventWriter, redis_space: RedisSpace
) -> None:
    name = key_of(redis_space.prefix, CHAT)
    assert latest(client, name) == "0-0"
    for number in range(5):
        writer.add(CHAT, "message", {"id": number})
    first = events(client, name, 2)
    again = events(client, name, 3, after=first[-1].cursor)
    assert [e.data["id"] for e in first + again] == [0, 1, 2, 3, 4]
    assert latest(client, name) == again[-1].cursor


def test_a_reader_whose_events_were_cut_off_is_told(
    client: redis.Redis, writer: EventWriter, redis_space: RedisSpace
) -> None:
    name = key_of(redis_space.prefix, CHAT)
    for number in range(5):
        writer.add(CHAT, "message", {"id": number})
    seen = events(client, name, 5)
    client.xtrim(name, maxlen=2, approximate=False)
    assert [e.kind for e in events(client, name, 3, after=seen[0].cursor)] == [
        "gap",
        *["message"] * 2,
    ]
    assert [e.kind for e in events(client, name, 1, after=seen[3].cursor)] == ["message"]


def test_a_reader_of_a_stream_that_is_gone_is_told(
    client: redis.Redis, writer: EventWriter, redis_space: RedisSpace
) -> None:
    name = key_of(redis_space.prefix, CHAT)
    writer.add(CHAT, "message", {"id": 1})
    (seen,) = events(client, name, 1)
    client.delete(name)
    assert events(client, name, 1, after=seen.cursor)[0].kind == "gap"


def test_deltas_of_one_part_are_joined_and_counted() -> None:
    batch = [
        (CHAT, "part", part(1, "He")),
        (CHAT, "part", part(2, "llo")),
        (CHAT, "part", part(3, "x", index=1)),
    ]
    joined = coalesce(batch)  # type: ignore[arg-type]
    assert [(e["text"], e["seq"], e["n"]) for _, _, e in joined] == [("Hello", 2, 2), ("x", 3, 1)]


def test_deltas_of_other_chats_do_not_come_between() -> None:
    other = uuid4()
    batch = [
        (CHAT, "part", part(1, "a")),
        (other, "part", part(1, "b")),
        (CHAT, "part", part(2, "c")),
    ]
    assert [e["text"] for _, _, e in coalesce(batch)] == ["ac", "b"]  # type: ignore[arg-type]


def test_a_redis_that_is_away_fails_nobody(redis_space: RedisSpace) -> None:
    nowhere = redis.Redis(host="127.0.0.1", port=1)
    writer = EventWriter(nowhere, redis_space.prefix)
    writer.add(CHAT, "message", {"id": 1})
    writer.flush()
    writer.close()


def test_a_reader_outlasts_what_its_connection_waits_for(
    redis_space: RedisSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "ANSWER_SECONDS", 0.2)
    with redis.Redis.from_url(redis_space.url, socket_timeout=0.5) as impatient:
        quiet = read(impatient, key_of(redis_space.prefix, CHAT), block_seconds=1)
        assert [next(quiet), next(quiet)] == [None, None]


def test_urgent_events_wait_for_each_other_but_not_for_long(
    client: redis.Redis, redis_space: RedisSpace
) -> None:
    sent: list[int] = []

    class Counting(EventWriter):
        def _send(self, batch: list[streams.Sent]) -> None:
            sent.append(len(batch))
            super()._send(batch)

    writer = Counting(client, redis_space.prefix)
    for number in range(300):
        writer.add(CHAT, "message", {"id": number})
    name = key_of(redis_space.prefix, CHAT)
    assert [e.data["id"] for e in events(client, name, 300)] == list(range(300))
    assert len(sent) < 20
    writer.close()


def test_what_was_hurried_is_there(client: redis.Redis, redis_space: RedisSpace) -> None:
    writer, done = EventWriter(client, redis_space.prefix), threading.Event()

    def chatter() -> None:
        while not done.is_set():
            writer.add(uuid4(), "part", part(1, "x"), now=False)  # type: ignore[arg-type]
            time.sleep(0.001)

    others = [threading.Thread(target=chatter) for _ in range(3)]
    for other in others:
        other.start()
    name = key_of(redis_space.prefix, CHAT)
    for number in range(100):
        writer.add(CHAT, "message", {"id": number}, now=number % 2 == 0)
        writer.hurry(10)
        assert client.xlen(name) == number + 1
    done.set()
    for other in others:
        other.join()
    writer.close()


def test_nobody_is_held_up_by_a_redis_that_is_away(redis_space: RedisSpace) -> None:
    writer = EventWriter(redis.Redis(host="127.0.0.1", port=1), redis_space.prefix)
    writer.add(CHAT, "message", {"id": 1})
    began = time.monotonic()
    writer.hurry()
    assert time.monotonic() - began < 1


def test_an_event_that_cannot_be_told_takes_no_other_along(
    client: redis.Redis, writer: EventWriter, redis_space: RedisSpace
) -> None:
    writer.add(CHAT, "tool", {"data": object()})  # type: ignore[dict-item]
    writer.add(CHAT, "message", {"id": 1})
    (event,) = events(client, key_of(redis_space.prefix, CHAT), 1)
    assert event.kind == "message"


@pytest.mark.parametrize("protocol", [2, 3])
def test_what_redis_refuses_is_dropped_and_the_rest_is_told(
    redis_space: RedisSpace, protocol: int, caplog: pytest.LogCaptureFixture
) -> None:
    other = uuid4()
    with redis.Redis.from_url(redis_space.url, protocol=protocol) as client:
        client.set(key_of(redis_space.prefix, CHAT), "not a stream")
        writer = EventWriter(client, redis_space.prefix)
        for number in range(3):
            for chat_id in (CHAT, other):
                writer.add(chat_id, "message", {"id": number})
            writer.flush()
        writer.close()
        found = events(client, key_of(redis_space.prefix, other), 3)
    assert [event.data["id"] for event in found] == [0, 1, 2]
    assert "could not be sent" in caplog.text


def test_a_connection_that_was_cut_is_made_anew(
    writer: EventWriter, redis_space: RedisSpace
) -> None:
    name = key_of(redis_space.prefix, CHAT)
    with redis.Redis.from_url(redis_space.url) as another:
        for number in range(3):
            writer.add(CHAT, "message", {"id": number})
            writer.hurry(10)
            another.client_kill_filter(_type="normal", skipme=True)
        assert [event.data["id"] for event in events(another, name, 3)] == [0, 1, 2]


def test_a_stream_is_told_to_expire_once_in_a_while(
    client: redis.Redis, redis_space: RedisSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, name = Batches(client), redis_space.key("stream")
    sender.send([(name, "one")])
    assert client.ttl(name) > 0
    client.persist(name)
    sender.send([(name, "two")])
    assert client.ttl(name) == -1, "that was a moment ago"
    monkeypatch.setattr(batches, "RENEW_SECONDS", 0)
    sender.send([(redis_space.key("another"), "three")])
    assert client.ttl(name) > 0, "whoever is written to, those whose time has come are told"


@pytest.mark.parametrize("how", ["close", "send"])
def test_no_stream_outlives_its_writer_for_ever(
    client: redis.Redis, redis_space: RedisSpace, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, name = Batches(client), redis_space.key("stream")
    sender.send([(name, "one")])
    client.delete(name)
    sender.send([(name, "two")])
    if how == "close":
        sender.close()
    else:
        monkeypatch.setattr(batches, "RENEW_SECONDS", 0)
        sender.send([])
    assert client.ttl(name) > 0


def test_after_an_outage_streams_are_told_again(
    redis_space: RedisSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise redis.ConnectionError

    name = redis_space.key("stream")
    with redis.Redis.from_url(redis_space.url, retry=Retry(NoBackoff(), 0)) as client:
        sender = Batches(client)
        sender.send([(name, "one")])
        with monkeypatch.context() as away:
            away.setattr(batches, "_talk", fail)
            with pytest.raises(redis.ConnectionError):
                sender.send([(name, "two")])
        client.delete(name)
        sender.send([(name, "three")])
        assert client.ttl(name) > 0
