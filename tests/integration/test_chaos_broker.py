"""What the broker of `make chaos` holds is known by id: waiting in a queue, or unacknowledged."""

from typing import Any

import kombu
from celery import Celery

from scripts.chaos_parts.broker import task_ids_in
from tests.conftest import RedisSpace


def test_messages_are_seen_in_the_queue_and_in_the_hands_of_a_worker(
    redis_space: RedisSpace,
) -> None:
    messages: Any = kombu  # it has no types
    app = Celery(broker=redis_space.url)
    queue = messages.Queue(redis_space.key("queue"))
    with app.connection_for_write() as connection, connection.channel() as channel:
        queue(channel).declare()
    for task_id in ("first/1", "second/2"):
        app.send_task("some.task", task_id=task_id, queue=queue)
    with messages.Connection(redis_space.url) as connection:
        taken = queue(connection.channel()).get()
        assert taken is not None
        held = task_ids_in(redis_space.url)
        assert {"first/1", "second/2"} <= held
        taken.ack()
        assert {"first/1", "second/2"} & task_ids_in(redis_space.url) == {"second/2"}
        queue(connection.channel()).delete()
