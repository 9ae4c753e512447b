"""Who lives and who is dead: nobody is buried alive, and nobody dead stays unnoticed."""

import os
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from sqlalchemy import text

from rejoinder import embedded
from tests.scenarios.plays import CONTROL, LONG, STEPS, WORDS, Begin, Play, play, sweeping
from tests.waiting import wait_until

CHATS = 24


@pytest.fixture
def begin(servers: embedded.Servers, make_database: Callable[[], str], tmp_path: Path) -> Begin:
    def begin(**settings: str) -> AbstractContextManager[Play]:
        return play(servers, make_database(), tmp_path, **settings)

    return begin


@pytest.mark.timeout(120)
@pytest.mark.parametrize("table", ["messages", "chats"])
def test_a_locked_table_takes_no_worker_for_dead_and_loses_no_answer(
    begin: Begin, servers: embedded.Servers, table: str
) -> None:
    quick = {"REJOINDER_DEAD_AFTER_SECONDS": "3", "REJOINDER_DATABASE_POOL": "5"}
    with begin(**quick) as on, sweeping(servers, every=0.3):
        on.worker("steps", concurrency=CHATS, queues=[STEPS])
        on.worker("control", queues=[CONTROL])
        on.ready()
        turns = [on.start({"text": "Done.", "delay": 6.0}) for _ in range(CHATS)]
        wait_until(lambda: _count(on, "chats WHERE status = 'running'") == CHATS, 30)
        with on.world.engine.begin() as locking:
            locking.execute(text("SET LOCAL lock_timeout = 0"))
            locking.execute(text(f"LOCK TABLE rejoinder.{table} IN ACCESS EXCLUSIVE MODE"))
            locking.execute(text("SELECT pg_sleep(14)"))  # longer than one waits for a lock
        on.rest(*turns)
        assert _count(on, "chats WHERE crashes > 0") == 0
        assert [on.answers(turn) for turn in turns] == [["Done."]] * CHATS
        assert _count(on, "steps WHERE outcome = 'finish_turn'") == CHATS
        assert _count(on, "steps") == CHATS, "each was asked once"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_a_killed_workers_chat_is_recovered_though_there_is_no_beat(
    begin: Begin, pool: str
) -> None:
    with begin() as on:
        victim = on.worker("victim", pool=pool)
        on.ready()
        turn = on.start({"text": WORDS, "delay": 25.0})
        wait_until(lambda: on.status(turn) == "running", 30)
        other = on.worker("other", pool=pool, queues=[STEPS])  # it gets nothing to do by itself
        on.ready()
        victim.stopping = True
        os.killpg(victim.pid, signal.SIGKILL)
        wait_until(lambda: on.row(turn)["crashes"] == 1, LONG, "a recovery")
        assert "is beat running?" in other.text()
        on.rest(turn)
        assert on.answers(turn) == [WORDS]


def _count(on: Play, what: str) -> int:
    (row,) = on.world.read(f"SELECT count(*) AS n FROM rejoinder.{what}")  # noqa: S608
    return int(row["n"])
