"""Hints reach the process that holds a lease; lost ones are made up for by the heartbeat."""

import json
import threading
from collections.abc import Iterator
from uuid import UUID

import pytest
import redis
from uuid_utils.compat import uuid7

from rejoinder.core.effects import Cause, Hint
from tasks import hints
from tests.conftest import RedisSpace
from tests.waiting import wait_until


class Ear:
    """A listener, and what it heard."""

    def __init__(self, space: RedisSpace) -> None:
        self.client = redis.Redis.from_url(space.url)
        self.prefix = space.prefix
        self.worker_id: UUID = uuid7()
        self.heard: list[tuple[UUID, Cause]] = []
        self.looks = threading.Semaphore(0)
        self.listener = hints.Listener(
            self.client,
            hints.channel_of(space.prefix, self.worker_id),
            lambda lease_id, cause: self.heard.append((lease_id, cause)),
            self.looks.release,
        )

    def send(self, lease_id: UUID, cause: Cause = Cause.INTERRUPT) -> None:
        hint = Hint(self.worker_id, uuid7(), lease_id, cause)
        hints.send(self.client, self.prefix, hint)


@pytest.fixture
def ear(redis_space: RedisSpace) -> Iterator[Ear]:
    made = Ear(redis_space)
    made.listener.start()
    assert made.looks.acquire(timeout=10)
    yield made
    made.listener.close()
    made.client.close()


def test_a_hint_is_heard_by_its_process_alone(ear: Ear, redis_space: RedisSpace) -> None:
    other = Ear(redis_space)
    other.listener.start()
    assert other.looks.acquire(timeout=10)
    lease_id = uuid7()
    ear.send(lease_id, Cause.LEASE_LOST)
    wait_until(lambda: ear.heard == [(lease_id, Cause.LEASE_LOST)])
    assert other.heard == []
    other.listener.close()
    other.client.close()


def test_nonsense_is_passed_over(ear: Ear) -> None:
    channel = hints.channel_of(ear.prefix, ear.worker_id)
    for body in ("", "x", "[]", "{}", json.dumps(["x", "interrupt"]), json.dumps([1, 2])):
        ear.client.publish(channel, body)
    lease_id = uuid7()
    ear.send(lease_id)
    wait_until(lambda: ear.heard == [(lease_id, Cause.INTERRUPT)])


def test_after_a_lost_connection_it_listens_again_and_has_the_rows_looked_at(ear: Ear) -> None:
    for client in ear.client.client_list(_type="pubsub"):
        ear.client.client_kill_filter(_id=client["id"])
    assert ear.looks.acquire(timeout=10), "nobody looked for what may have been missed"
    lease_id = uuid7()
    ear.send(lease_id)
    wait_until(lambda: ear.heard == [(lease_id, Cause.INTERRUPT)])
