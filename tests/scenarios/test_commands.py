"""A command is the only copy of what a user said: it is not lost with the worker that took it."""

import os
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg2
import pytest
from sqlalchemy import make_url

from rejoinder import embedded
from rejoinder.client import Turn
from scripts.fleet import Member
from tests.integration.invariants import assert_invariants
from tests.scenarios.phases import RowLock
from tests.scenarios.plays import CONTROL, Begin, Play, play
from tests.waiting import wait_until

POOLS = pytest.mark.parametrize("pool", ["threads", "prefork"])
NEVER = "3600"


@pytest.fixture
def begin(servers: embedded.Servers, make_database: Callable[[], str], tmp_path: Path) -> Begin:
    """A function that begins a play on a database of its own."""

    def start(**settings: str) -> AbstractContextManager[Play]:
        return play(servers, make_database(), tmp_path, **settings)

    return start


def fire_and_forget(on: Play, command: str, **arguments: Any) -> None:
    """As an app does that waits for no answer."""
    on.client.app.send_task(
        f"rejoinder.{command}", kwargs=arguments, queue=CONTROL, ignore_result=True
    )


def begin_commands(on: Play, lock: RowLock) -> tuple[Turn, Turn]:
    """Have commands for two chats begun that cannot end: somebody else has the rows."""
    told, stopped = on.start({"text": "Done."}), on.start({"text": "Done."})
    for turn in (told, stopped):
        lock.take(turn.chat_id)
    fire_and_forget(on, "send_message", chat_id=told.chat_id, content="And then?")
    fire_and_forget(on, "interrupt", chat_id=stopped.chat_id)
    wait_until(lambda: lock.waiting() == 2, 30, "both commands at work")
    return told, stopped


def let_go(on: Play, lock: RowLock) -> None:
    """Release the rows; what the dead have begun is over, as when their connections are cut."""
    url = make_url(on.database_url).set(drivername="postgresql", database="postgres")
    with psycopg2.connect(url.render_as_string(hide_password=False)) as connection:
        connection.cursor().execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            " AND datname = %s",
            [make_url(on.database_url).database],
        )
    connection.close()
    lock.close()


def are_done(on: Play, told: Turn, stopped: Turn) -> bool:
    queued = on.world.read(
        "SELECT count(*) AS n FROM rejoinder.queued_messages WHERE chat_id = :c", c=told.chat_id
    )
    return queued[0]["n"] == 1 and on.status(stopped) == "waiting"


def kill_all(member: Member) -> None:
    """Power is cut: the worker and its children are gone at once."""
    member.stopping = True
    with suppress(ProcessLookupError):
        os.killpg(member.pid, signal.SIGKILL)
    member.wait()


@POOLS
def test_a_command_is_not_lost_with_its_worker(begin: Begin, pool: str) -> None:
    with begin(REJOINDER_VISIBILITY_SECONDS="2") as on:
        first = on.worker("first", pool=pool, concurrency=3, queues=[CONTROL])
        on.ready()
        lock = RowLock(on.database_url)
        told, stopped = begin_commands(on, lock)
        kill_all(first)
        let_go(on, lock)
        on.worker("second", pool=pool, concurrency=3, queues=[CONTROL])
        on.ready()
        wait_until(lambda: are_done(on, told, stopped), 12, "both commands done")
        assert_invariants(on.world.engine)


def test_a_command_is_not_lost_with_a_killed_child(begin: Begin) -> None:
    with begin(REJOINDER_VISIBILITY_SECONDS=NEVER) as on:
        worker = on.worker("only", pool="prefork", concurrency=3, queues=[CONTROL])
        on.ready()
        lock = RowLock(on.database_url)
        told, stopped = begin_commands(on, lock)
        for child in psutil.Process(worker.pid).children():
            child.kill()
        let_go(on, lock)
        wait_until(lambda: are_done(on, told, stopped), 12, "both commands done")
        assert_invariants(on.world.engine)


@POOLS
def test_a_command_that_fails_or_is_refused_is_not_repeated(begin: Begin, pool: str) -> None:
    with begin(REJOINDER_VISIBILITY_SECONDS="1") as on:
        worker = on.worker("only", pool=pool, concurrency=3, queues=[CONTROL])
        on.ready()
        refused = "Task rejoinder.send_message"
        fire_and_forget(on, "send_message", chat_id="no chat", content="?")
        fire_and_forget(on, "send_message", chat_id=str(os.getpid()), content="?")
        wait_until(lambda: worker.text().count(f"{refused}[") >= 4, 30, "both refused")
        wait_until(lambda: not on.redis.exists("rejoinder.unacked"), 10, "nothing unacknowledged")
        assert on.redis.llen(CONTROL) == 0


def test_others_on_the_same_redis_keep_their_unacknowledged_messages(begin: Begin) -> None:
    """An app's own long task is not restored because ours are short."""
    with begin(REJOINDER_VISIBILITY_SECONDS="1") as on:
        on.redis.zadd("unacked_index", {"theirs": 1.0})
        on.redis.hset("unacked", "theirs", '[{}, "x", "y"]')
        on.worker("only", concurrency=3, queues=[CONTROL])
        on.ready()
        on.start({"text": "Done."})
        assert on.redis.hkeys("unacked") == [b"theirs"]


def of_another_language(on: Play, task_id: str, chat_id: str, content: str) -> None:
    """A message as somebody writes it who has an own idea of ids, and no idea of roots."""
    app = on.client.app
    arguments = {"chat_id": chat_id, "content": content}
    made = app.amqp.as_task_v2(task_id, "rejoinder.send_message", kwargs=arguments)
    made.headers.update(root_id=None, parent_id=None)
    with app.producer_pool.acquire() as producer:
        app.amqp.send_task_message(
            producer, "rejoinder.send_message", made, queue=CONTROL, serializer="json"
        )


@POOLS
def test_ids_of_others_are_taken_as_they_are(begin: Begin, pool: str) -> None:
    with begin() as on:
        worker = on.worker("only", pool=pool, concurrency=3)
        on.ready()
        turn = on.start({"text": "One."}, later=[{"text": "Two."}, {"text": "Three."}])
        on.rest(turn)
        for number, task_id in enumerate(["order-4711", "x" * 300], start=2):
            of_another_language(on, task_id, turn.chat_id, "And then?")
            wait_until(lambda: len(on.answers(turn)) == number, 15, "an answer")  # noqa: B023
            result = on.client.app.AsyncResult(task_id)
            assert result.get(timeout=10)["chat_id"] == turn.chat_id
        assert "Traceback" not in worker.text()


def test_a_command_whose_end_cannot_be_told_leaves_its_slot(begin: Begin) -> None:
    """What is to follow it cannot be read, and Celery can store neither a result nor a failure."""
    with begin() as on:
        worker = on.worker("only", pool="threads", concurrency=2, queues=[CONTROL])
        on.ready()
        turn = on.start({"text": "Done."})
        for _ in range(3):
            on.client.app.send_task(
                "rejoinder.get_chat",
                kwargs={"chat_id": turn.chat_id},
                queue=CONTROL,
                chain=[{"no": "signature"}],
            )
        failed = "Celery failed around a task"
        wait_until(lambda: worker.text().count(failed) == 3, 20, "three that Celery failed around")
        assert on.client.get_chat(turn.chat_id)["status"] == "pending"
