"""A chat's events in a real Valkey: in order, in batches, resumable, honest about gaps."""

from collections.abc import Iterator
from itertools import islice
from uuid import uuid4

import pytest
import redis

from rejoinder import streams
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
