"""RabbitMQ as the broker: an ordinary turn, and commands that are neither lost nor done twice."""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from rejoinder import embedded
from tests.integration.invariants import assert_invariants
from tests.scenarios.phases import RowLock
from tests.scenarios.plays import CONTROL, Begin, Play, play
from tests.scenarios.rabbit import Rabbit, program, rabbit
from tests.scenarios.test_commands import (
    POOLS,
    are_done,
    begin_commands,
    fire_and_forget,
    kill_all,
    let_go,
)
from tests.waiting import wait_until

ADD = {"text": "Look.", "calls": [{"name": "add", "arguments": {"a": 1, "b": 2}}]}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rabbit]:
    if program("rabbitmq-server") is None:
        pytest.skip("rabbitmq-server is not installed: nothing was tested on RabbitMQ")
    with rabbit(tmp_path_factory.mktemp("rabbit")) as running:
        yield running


@pytest.fixture
def begin(
    servers: embedded.Servers, broker: Rabbit, make_database: Callable[[], str], tmp_path: Path
) -> Begin:
    def start(**settings: str) -> AbstractContextManager[Play]:
        url = {"REJOINDER_BROKER_URL": broker.url}
        return play(servers, make_database(), tmp_path, **url, **settings)

    return start


@POOLS
def test_a_turn_with_tools(begin: Begin, pool: str) -> None:
    with begin() as on:
        on.worker("only", pool=pool, concurrency=3)
        on.ready()
        turn = on.start(ADD, {"text": "Done."})
        assert turn.get(timeout=30)["text"] == "Done."
        assert on.history(turn)[2:] == [("tool", "✓3"), ("assistant", "Done.")]
        assert_invariants(on.world.engine)


@POOLS
def test_a_command_is_not_lost_with_its_worker(begin: Begin, pool: str) -> None:
    with begin() as on:
        first = on.worker("first", pool=pool, concurrency=3, queues=[CONTROL])
        on.ready()
        lock = RowLock(on.database_url)
        told, stopped = begin_commands(on, lock)
        kill_all(first)
        let_go(on, lock)
        on.worker("second", pool=pool, concurrency=3, queues=[CONTROL])
        on.ready()
        wait_until(lambda: are_done(on, told, stopped), 30, "both commands done")
        assert_invariants(on.world.engine)


@POOLS
def test_a_command_that_is_delivered_again_is_done_once(
    begin: Begin, broker: Rabbit, pool: str
) -> None:
    """The connection is cut while it is at work: RabbitMQ gives it to somebody else meanwhile."""
    with begin() as on:
        worker = on.worker("only", pool=pool, concurrency=4, queues=[CONTROL])
        on.ready()
        turn = on.start({"text": "Done."})
        lock = RowLock(on.database_url)
        lock.take(turn.chat_id)
        fire_and_forget(on, "send_message", chat_id=turn.chat_id, content="And then?")
        wait_until(lambda: lock.waiting() == 1, 30, "the command at work")
        broker.close_connections()
        wait_until(lambda: lock.waiting() == 2, 60, "its second delivery at work, too")
        lock.close()
        over = re.compile(r"Task rejoinder\.send_message\[.*\] succeeded")
        wait_until(lambda: len(over.findall(worker.text())) == 2, 30, "both deliveries over")
        (queued,) = on.world.read("SELECT count(*) AS n FROM rejoinder.queued_messages")
        assert queued["n"] == 1
        assert_invariants(on.world.engine)
