"""Steps that a worker rings for by itself: what the broker still sees of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from rejoinder import embedded
from tests.scenarios.house import House
from tests.waiting import wait_until

ADD: dict[str, Any] = {"text": "Look.", "calls": [{"name": "add", "arguments": {"a": 1, "b": 1}}]}
END = {"text": "Done."}


@contextmanager
def heard(servers: embedded.Servers) -> Iterator[list[str]]:
    """Messages for steps that the broker gets meanwhile."""
    seen: list[str] = []
    with redis.Redis.from_url(servers.redis_url) as client, client.monitor() as monitor:

        def listen() -> bool:
            said = monitor.next_command()["command"]
            if said.startswith("LPUSH rejoinder.steps "):
                seen.append(said)
            return bool(said.endswith("enough"))

        yield seen
        with redis.Redis.from_url(servers.redis_url) as other:
            other.echo("enough")
        wait_until(listen, what="the end of what the broker heard")


@pytest.mark.parametrize(("steps", "messages"), [(4, 1), (12, 2)])
def test_a_turn_stays_in_its_worker_and_is_shared_out_now_and_then(
    house: House, servers: embedded.Servers, steps: int, messages: int
) -> None:
    worker = house.worker()
    with heard(servers) as seen:
        turn = house.start(*[ADD] * (steps - 1), END)
        assert turn.get(timeout=60)["text"] == "Done."
    assert len(seen) == messages
    told = house.client.get_steps(turn.chat_id)["steps"]
    assert len(told) == steps
    assert len({step["task_id"] for step in told}) == steps
    for step in told:  # each was a task of Celery's, with an id of its own
        assert f"Task rejoinder.step[{step['task_id']}] received" in worker.text()
    worker.stop()
