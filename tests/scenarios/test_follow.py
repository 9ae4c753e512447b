"""Following a chat: history, then live, whenever one joins; nothing missed, nothing doubled."""

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from rejoinder import embedded
from rejoinder.client import Client
from rejoinder.core.state import AT_REST
from rejoinder.streams import StreamEvent, key_of
from rejoinder.testing import call, play, say, together
from scripts.fleet import Fleet, environment

STEPS = 6
SCRIPT = play(
    [
        *[
            together(
                say(f"Step {n}: a few words that take their time.", pace=0.01),
                call("calculate", expression=f"{n} + 1"),
            )
            for n in range(STEPS)
        ],
        say("And that was all there is to say about it.", pace=0.02),
    ]
)


@pytest.fixture(scope="module")
def client(
    servers: embedded.Servers,
    make_database: Callable[[], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Client]:
    with redis.Redis.from_url(servers.redis_url) as connection:
        connection.flushdb()
    env = environment(
        make_database(), servers.redis_url, REJOINDER_TOOLS="rejoinder.tools.examples"
    )
    with (
        Fleet(env, tmp_path_factory.mktemp("logs")) as fleet,
        Client(broker_url=servers.redis_url, timeout=60) as made,
    ):
        fleet.worker("one", concurrency=8)
        fleet.worker("two", concurrency=8)
        fleet.wait_until_ready()
        yield made


def follow_to_rest(client: Client, chat_id: str, after: str | None = None) -> list[StreamEvent]:
    events = []
    for event in client.follow(chat_id, after=after, idle_seconds=2):
        if event is None:
            continue
        events.append(event)
        if event.kind == "status" and event.data["status"] in AT_REST:
            return events
    raise AssertionError


def ids(events: list[StreamEvent]) -> list[int]:
    return [event.data["id"] for event in events if event.kind == "message"]


def stored(client: Client, chat_id: str) -> list[int]:
    return [message["id"] for message in client.get_messages(chat_id)["messages"]]


def start(client: Client) -> str:
    return client.create_chat(
        "go", owner="reader", model="scripted:echo", options={"extra": SCRIPT}
    ).chat_id


def test_readers_who_join_at_any_time_get_every_message_once(client: Client) -> None:
    chats = [start(client) for _ in range(3)]
    got: dict[tuple[int, int], list[StreamEvent]] = {}

    def read(chat: int, reader: int) -> None:
        with Client(broker_url=client.app.conf.broker_url, timeout=60) as own:
            for _ in itertools.islice(own.stream(chats[chat], idle_seconds=2), reader * 7):
                pass  # the later readers join when so many events have passed
            got[chat, reader] = follow_to_rest(own, chats[chat])

    threads = [
        threading.Thread(target=read, args=(chat, reader))
        for chat in range(len(chats))
        for reader in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert len(got) == len(threads)
    for (chat, _), events in got.items():
        assert ids(events) == stored(client, chats[chat])


def test_live_parts_that_are_given_are_those_of_messages_still_to_come(client: Client) -> None:
    chat = start(client)
    for events in [follow_to_rest(client, chat), follow_to_rest(client, chat)]:
        text = ""
        for event in events:
            if event.kind == "part" and event.data["of"] == "text":
                text += event.data["text"]
            if event.kind == "message":
                said = "".join(part.get("text", "") for part in event.data["parts"])
                assert text in ("", said)
                text = ""
        assert text == ""


def test_a_chat_at_rest_has_no_live_parts_for_a_late_reader(client: Client) -> None:
    chat = start(client)
    follow_to_rest(client, chat)
    late = itertools.takewhile(bool, client.follow(chat, idle_seconds=0.5))
    assert {event.kind for event in late if event} == {"message", "status"}


def test_a_reader_goes_on_from_any_cursor(client: Client) -> None:
    chat = start(client)
    follow_to_rest(client, chat)
    whole = follow_to_rest(client, chat, after="0-0")
    for place in range(0, len(whole) - 1, 5):
        rest = follow_to_rest(client, chat, after=whole[place].cursor)
        assert rest == whole[place + 1 :]


def test_after_a_gap_the_messages_are_read_again(client: Client) -> None:
    chat = start(client)
    first = follow_to_rest(client, chat)
    with redis.Redis.from_url(client.app.conf.broker_url) as server:
        server.delete(key_of("rejoinder:", chat))
    events = follow_to_rest(client, chat, after=first[3].cursor)
    assert events[0].kind == "gap"
    assert ids(events) == stored(client, chat)


def test_a_busy_chat_whose_events_are_lost_is_read_from_the_rows(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = start(client)
    follow_to_rest(client, chat)
    heard: dict[str, Any] = client.get_chat(chat)
    monkeypatch.setattr(client, "stream", lambda *_, **__: iter([None, None]))
    answers = iter([{**heard, "status": "running", "version": heard["version"] - 1}])
    asked = client.get_chat
    monkeypatch.setattr(client, "get_chat", lambda chat_id: next(answers, None) or asked(chat_id))
    events = [event for event in client.follow(chat) if event is not None]
    statuses = [event.data["status"] for event in events if event.kind == "status"]
    assert statuses == ["running", "waiting"]
    assert ids(events) == stored(client, chat)
