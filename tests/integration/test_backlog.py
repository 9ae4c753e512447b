"""A backlog of 5,000 chats: the sweep repeats what was lost, and never more than that.

The queue is a real one, filled by the real dispatch and measured as the sweep measures it. Time is
simulated: the moments on the rows are moved into the past.
"""

import base64
import json
import random
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
import redis
from celery import Celery
from sqlalchemy import Engine, text

from models.sweep import sweep
from rejoinder.core.effects import Dispatch
from rejoinder.core.limits import REDISPATCH_FIRST, REDISPATCH_MOST
from tasks import broker, dispatch
from tests.chats import DEAD_AFTER, World
from tests.conftest import RedisSpace

CHATS = 5_000
SWEEP_SECONDS = 5

_FILL = """
INSERT INTO rejoinder.chats
       (id, owner, root_id, status, turn_id, step_id, dispatches, redispatch_at)
SELECT n.id, 'owner', n.id, 'pending', n.turn, gen_random_uuid(), 1, clock_timestamp() + :gap
  FROM (SELECT gen_random_uuid() AS id, gen_random_uuid() AS turn
          FROM generate_series(1, :count)) AS n;
INSERT INTO rejoinder.turns (id, chat_id, kind, state)
SELECT turn_id, id, 'retry', 'open' FROM rejoinder.chats
"""
_PASS = """
UPDATE rejoinder.chats
   SET redispatch_at = redispatch_at - CAST(:time AS interval),
       run_after = run_after - CAST(:time AS interval)
 WHERE status = 'pending'
"""
_CLAIM = """
UPDATE rejoinder.chats
   SET status = 'running', lease_id = gen_random_uuid(), worker_id = :worker,
       run_after = NULL, redispatch_at = NULL, dispatches = 0
 WHERE status = 'pending' AND id = ANY(CAST(:ids AS uuid[]))
"""


class Backlog:
    """Chats that wait, and the messages that should bring them to workers."""

    def __init__(self, engine: Engine, server: "redis.Redis", queue: str) -> None:
        """Begin without any."""
        self.world = World(engine)
        self._server = server
        self._queue = queue

    def fill(self, count: int) -> None:
        """Make chats that nobody has rung for."""
        self._execute(_FILL, count=count, gap=REDISPATCH_FIRST)

    def ring(self, count: int) -> None:
        """Send the messages of so many chats."""
        rows = self.world.read("SELECT id, turn_id, step_id FROM rejoinder.chats")
        random.Random(1).shuffle(rows)
        self._send([Dispatch(row["id"], row["turn_id"], row["step_id"]) for row in rows[:count]])

    def sweep(self, seconds: int = SWEEP_SECONDS, *, lost: bool = False) -> int:
        """Let time pass, then sweep; how many were rung for."""
        self._execute(_PASS, time=timedelta(seconds=seconds))
        swept = sweep(self.world.engine, dead_after=DEAD_AFTER, queued=broker.waiting_steps())
        if not lost:
            self._send(swept.dispatches)
        assert self.messages <= self.pending, "more messages than chats"
        return len(swept.dispatches)

    def _send(self, many: Sequence[Dispatch]) -> None:
        """Send one message, and as many like it as are wanted."""
        if not many:
            return
        dispatch.dispatch(many[0])
        message = json.loads(self._server.lindex(self._queue, 0))  # type: ignore[arg-type]
        args, _, embedded = json.loads(base64.b64decode(message["body"]))
        pipe = self._server.pipeline(transaction=False)
        for to in many[1:]:
            body = json.dumps([args, {"chat_id": str(to.chat_id)}, embedded]).encode()
            copy = {**message, "body": base64.b64encode(body).decode()}
            pipe.lpush(self._queue, json.dumps(copy))
        pipe.execute()

    def work(self, count: int) -> None:
        """Do what workers do with so many messages."""
        taken: Any = self._server.rpop(self._queue, count) or []
        bodies = [json.loads(base64.b64decode(json.loads(each)["body"])) for each in taken]
        ids = [str(UUID(options["chat_id"])) for _, options, _ in bodies]
        self._execute(_CLAIM, ids=ids, worker=self.world.worker_id)

    @property
    def messages(self) -> int:
        return int(self._server.llen(self._queue))

    @property
    def pending(self) -> int:
        query = "SELECT count(*) AS n FROM rejoinder.chats WHERE status = 'pending'"
        return int(self.world.read(query)[0]["n"])

    def _execute(self, statement: str, **given: object) -> None:
        with self.world.engine.begin() as connection:
            connection.execute(text(statement), given)


@pytest.fixture
def backlog(
    engine: Engine, redis_space: RedisSpace, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Backlog]:
    with Celery("backlog") as app, redis.Redis.from_url(redis_space.url) as server:
        app.config_from_object("celeryconfig")
        app.conf.broker_url = redis_space.url
        app.conf.broker_transport_options = {"global_keyprefix": redis_space.prefix}
        monkeypatch.setattr(dispatch, "app", app)
        monkeypatch.setattr(broker, "app", app)
        yield Backlog(engine, server, redis_space.key(broker.STEPS))


def test_messages_that_only_wait_are_not_repeated(backlog: Backlog) -> None:
    backlog.fill(CHATS)
    backlog.ring(CHATS)
    assert [backlog.sweep(seconds=60) for _ in range(6)] == [0] * 6
    assert backlog.messages == CHATS


def test_messages_that_were_all_lost_are_sent_again_once(backlog: Backlog) -> None:
    backlog.fill(CHATS)
    assert [backlog.sweep() for _ in range(2)] == [0, CHATS]
    assert [backlog.sweep(seconds=60) for _ in range(6)] == [0] * 6
    assert backlog.messages == CHATS
    backlog.work(CHATS)
    assert backlog.pending == 0


def test_lost_messages_among_others_are_sent_again_as_the_queue_drains(backlog: Backlog) -> None:
    backlog.fill(CHATS)
    backlog.ring(CHATS // 2)
    rung = sweeps = 0
    while backlog.pending and sweeps < 100:
        rung += backlog.sweep()
        backlog.work(500)
        sweeps += 1
    assert backlog.pending == 0
    # At worst, all that were repeated first were not lost: then each chat is rung for once.
    assert rung <= CHATS
    assert sweeps <= (CHATS + CHATS // 2) // 500 + 2


def test_gaps_between_repetitions_grow(backlog: Backlog) -> None:
    backlog.fill(50)
    gaps: list[int] = []
    for _ in range(8):
        sweeps = 1
        while not backlog.sweep(lost=True):
            sweeps += 1
        gaps.append(sweeps * SWEEP_SECONDS)
    longest = int(REDISPATCH_MOST.total_seconds())
    assert gaps == [10, 20, 40, 80, 160, longest, longest, longest]
