"""What is mended in kombu's way to Redis."""

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from kombu import Producer, Queue  # type: ignore[attr-defined]
from kombu.asynchronous import Hub, get_event_loop, set_event_loop
from kombu.connection import Connection
from kombu.message import Message

import tasks.edges  # noqa: F401  # it does the mending
from tasks import broker
from tests.conftest import RedisSpace


def test_a_channel_keeps_its_client_as_long_as_its_pool(redis_space: RedisSpace) -> None:
    with Connection(redis_space.url) as connection:  # type: ignore[no-untyped-call]
        channel = connection.default_channel
        with channel.conn_or_acquire() as one, channel.conn_or_acquire() as other:
            assert one is other
            assert one.ping()
        channel._disconnect_pools()
        with channel.conn_or_acquire() as new:
            assert new is not one
            assert new.ping()


class Kept:
    """A channel that has taken one message off its queue, and what Redis knows of that."""

    def __init__(self, connection: Connection, name: str) -> None:
        """Send one, and take it."""
        self.channel: Any = connection.default_channel
        self.name = name
        self.taken: list[Message] = []
        queue = Queue(name, channel=self.channel)  # type: ignore[no-untyped-call]
        queue.declare()  # type: ignore[no-untyped-call]
        Producer(self.channel).publish({"n": 1}, routing_key=name)  # type: ignore[no-untyped-call]
        self.channel.basic_consume(  # type: ignore[no-untyped-call]
            name, no_ack=False, callback=self.taken.append, consumer_tag="tag"
        )

    def take(self) -> None:
        """As the worker's loop does."""
        client = self.channel.client
        client.connection = client.connection or client.connection_pool.get_connection()
        self.channel._brpop_start()
        self.channel._brpop_read()

    @property
    def notes(self) -> int:
        """What is noted as taken and not acknowledged."""
        return int(self.channel.client.hlen(self.channel.unacked_key))

    @property
    def waiting(self) -> int:
        return int(self.channel._size(self.name))


@pytest.fixture
def hub() -> Iterator[Hub]:
    before, made = get_event_loop(), Hub()  # type: ignore[no-untyped-call]
    set_event_loop(made)
    yield made
    made.close()  # type: ignore[no-untyped-call]
    set_event_loop(before)


@pytest.fixture
def kept(redis_space: RedisSpace) -> Iterator[Kept]:
    options = {"global_keyprefix": redis_space.prefix}
    with Connection(redis_space.url, transport_options=options) as connection:  # type: ignore[no-untyped-call]
        yield Kept(connection, "q")


def test_a_message_is_acknowledged_without_a_note(hub: Hub, kept: Kept) -> None:
    del hub
    kept.take()
    assert (len(kept.taken), kept.waiting, kept.notes) == (1, 0, 0)
    kept.taken[0].ack()  # type: ignore[no-untyped-call]
    assert not kept.channel.qos.__dict__["_unnoted"]
    assert kept.notes == 0


def test_a_message_that_nobody_begins_is_noted(
    hub: Hub, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "NOTE_SECONDS", 0.0)
    kept.take()
    hub.fire_timers()  # type: ignore[no-untyped-call]
    assert kept.notes == 1
    kept.taken[0].ack()  # type: ignore[no-untyped-call]
    assert kept.notes == 0


def test_a_note_that_cannot_be_taken_ends_no_loop(
    hub: Hub, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The channel may be one of a connection that was lost meanwhile."""
    monkeypatch.setattr(broker, "NOTE_SECONDS", 0.0)
    kept.take()
    with monkeypatch.context() as gone:
        gone.setattr(kept.channel.connection, "client", None)
        gone.setattr(kept.channel, "_pool", None)
        gone.delitem(kept.channel.__dict__, "_kept_client", raising=False)
        hub.fire_timers(propagate=(redis.ConnectionError,))  # type: ignore[no-untyped-call]
    assert not kept.channel.qos.__dict__["_unnoted"]


@pytest.mark.parametrize("how", ["reject", "shutdown"])
def test_a_message_that_is_given_back_waits_again(hub: Hub, kept: Kept, how: str) -> None:
    del hub
    kept.take()
    if how == "reject":
        kept.taken[0].requeue()  # type: ignore[no-untyped-call]
    else:
        kept.channel.qos.restore_unacked_once()
    assert (kept.waiting, kept.notes) == (1, 0)


def test_without_a_loop_a_message_is_noted_at_once(kept: Kept) -> None:
    kept.take()
    assert kept.notes == 1


def test_messages_are_held_back_for_whoever_sends_them(kept: Kept, redis_space: RedisSpace) -> None:
    with broker.held_back() as messages:
        Producer(kept.channel).publish({"n": 2}, routing_key=kept.name)  # type: ignore[no-untyped-call]
    assert kept.waiting == 1
    ((command, key, message),) = messages
    with redis.Redis.from_url(redis_space.url) as client:
        client.execute_command(str(command), key, message)
    assert kept.waiting == 2
