"""Processes die in mid-work, or are silent for too long: every chat goes on, and none twice.

Real workers are killed by the kernel's means. Sweeps come from a thread of the test, where there
are any; a chat is recovered by them, by the parent of a killed child, or by children themselves.
"""

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import pytest

from models import claims
from rejoinder import embedded
from rejoinder.client import Turn, TurnFailed
from rejoinder.core.state import Status
from scripts.fleet import Member
from tests.chats import World
from tests.integration.invariants import assert_invariants
from tests.owners import is_alive
from tests.scenarios.phases import RowLock
from tests.scenarios.plays import CONTROL, LONG, STEPS, WORDS, Begin, Play, play, script, sweeping
from tests.waiting import wait_until

POOLS = pytest.mark.parametrize("pool", ["threads", "prefork"])
NEVER = "3600"
DONE = {"text": "Done.", "delay": 1.0}
UNKNOWN = "outcome is unknown"


@pytest.fixture
def begin(servers: embedded.Servers, make_database: Callable[[], str], tmp_path: Path) -> Begin:
    """A function that begins a play on a database of its own."""

    def start(**settings: str) -> AbstractContextManager[Play]:
        return play(servers, make_database(), tmp_path, **settings)

    return start


def family(member: Member) -> list[psutil.Process]:
    return list(psutil.Process(member.pid).children(recursive=True))


def test_a_killed_child_is_recovered_by_its_parent_without_a_sweep(
    begin: Begin,
) -> None:
    with begin(REJOINDER_DEAD_AFTER_SECONDS=NEVER) as on:
        worker = on.worker("only", pool="prefork", concurrency=3)
        on.ready()
        once = on.start(on.using("hold", "once"), DONE)
        again = on.start(on.using("hold_async", "again"), DONE)
        wait_until(lambda: on.noted("once") and on.noted("again"), 30)
        for turn in (once, again):
            os.kill(on.owner(turn), signal.SIGKILL)
        wait_until(lambda: on.row(once)["crashes"] == 1, 15, "a counted crash")
        on.rest(once, again)
        for turn in (once, again):
            assert worker.text().count(f"{turn.chat_id}: the process of its step is gone") == 1
        assert on.history(once)[2:] == [("tool", on.history(once)[2][1]), ("assistant", "Done.")]
        assert UNKNOWN in on.history(once)[2][1]
        assert on.noted("once") == ["begin"]
        assert on.history(again)[2:] == [("tool", "✓held"), ("assistant", "Done.")]
        assert on.noted("again") == ["begin", "begin", "end"]
        assert [on.row(turn)["crashes"] for turn in (once, again)] == [0, 0]
        assert_invariants(on.world.engine)


def test_children_of_a_killed_main_process_hand_their_steps_back_and_end(
    begin: Begin,
) -> None:
    with begin(REJOINDER_DEAD_AFTER_SECONDS=NEVER) as on:
        victim = on.worker("victim", pool="prefork", concurrency=3, queues=[STEPS])
        other = on.worker("other", pool="prefork", concurrency=3, queues=[CONTROL])
        on.ready()
        talks = on.start({"text": WORDS, "pace": 0.15})
        once = on.start(on.using("hold", "once"), {"text": "Done."})
        again = on.start(on.using("hold_async", "again"), {"text": "Done."})
        wait_until(lambda: on.noted("once") and on.noted("again") and on.live(talks), 30)
        children = family(victim)
        victim.kill()
        on.takes_steps(other)
        wait_until(lambda: not any(map(is_alive, children)), 15, "the end of the children")
        on.rest(talks, once, again)
        assert [on.row(turn)["crashes"] for turn in (talks, once, again)] == [0, 0, 0]
        assert on.answers(talks) == [WORDS]
        assert UNKNOWN in on.history(once)[2][1]
        assert on.noted("once") == ["begin"]
        assert on.history(again)[2:] == [("tool", "✓held"), ("assistant", "Done.")]
        assert_invariants(on.world.engine)


@POOLS
def test_a_worker_that_was_stopped_past_its_lease_changes_nothing_when_it_goes_on(
    begin: Begin, servers: embedded.Servers, pool: str
) -> None:
    with begin(REJOINDER_DEAD_AFTER_SECONDS="3") as on, sweeping(servers):
        # No free slot: one would take messages along into its sleep.
        zombie = on.worker("zombie", pool=pool, concurrency=4, queues=[STEPS])
        other = on.worker("other", pool=pool, queues=[CONTROL])
        on.ready()
        commits = on.start({"text": "Committed.", "delay": 2.0}, later=[{"text": "Again."}])
        talks = on.start({"text": WORDS, "pace": 0.2})
        sync = on.start(on.using("watch", "sync"), {"text": "Done."})
        later = on.start(on.using("watch_async", "async"), {"text": "Done."})
        lock = RowLock(on.database_url)
        wait_until(lambda: on.status(commits) == "running", 30)
        # What its owner knows is no longer so: it needs the lock, and several statements.
        on.client.send_message(commits.chat_id, "And?", when_busy="queue")
        lock.take(commits.chat_id)
        wait_until(lambda: on.noted("sync") and on.noted("async") and on.live(talks), 30)
        wait_until(lock.waiting, 30)
        try:
            os.killpg(zombie.pid, signal.SIGSTOP)
            lock.release()  # the commit goes on as far as it can without its worker
            on.takes_steps(other)
            again = ("running", 1)
            wait_until(
                lambda: _status_and_crashes(on, commits) == again, 30, "work on it elsewhere"
            )
        finally:
            os.killpg(zombie.pid, signal.SIGCONT)
            lock.close()
        wait_until(lambda: on.noted("sync")[-1] != "begin", 15, "the sync tool's cancellation")
        wait_until(lambda: len(on.noted("async")) == 3, 15, "the async tool's cancellation")
        wait_until(lambda: f"{commits.chat_id}: the lease is gone" in zombie.text(), 15)
        on.rest(talks, sync, later, commits)
        assert "the lease is gone" not in other.text()
        assert on.noted("sync") == ["begin", "lease_lost"]
        assert on.noted("async") == ["begin", "begin", "lease_lost"]
        assert UNKNOWN in on.history(sync)[2][1]
        assert on.history(later)[2:] == [("tool", "✓watched"), ("assistant", "Done.")]
        assert on.answers(talks) == [WORDS]
        assert on.answers(commits) == ["Committed.", "Again."]
        assert_invariants(on.world.engine)


def _status_and_crashes(on: Play, turn: Turn) -> tuple[str, int]:
    row = on.row(turn)
    return row["status"], row["crashes"]


HALF = {"name": "add", "id": "half", "arguments": {"a": 3, "b": 4}}
WHOLE = {"name": "add", "id": "whole", "arguments": {"a": 1, "b": 2}}
CUT_OFF: dict[str, tuple[dict[str, Any], list[tuple[str, str]]]] = {
    "words": ({"text": WORDS, "hang_after": 4}, [("assistant", "word0 word1 word2 word3")]),
    "a whole call": (
        {"text": "Let me", "calls": [WHOLE, HALF], "hang_after": 7},
        [("assistant", "Let me | →add"), ("tool", "✗The user stopped the turn")],
    ),
    "half a call": (
        {"text": "Let me", "calls": [HALF], "hang_after": 4},
        [("assistant", "Let me")],
    ),
}


@POOLS
def test_the_words_of_a_killed_worker_are_kept_when_its_chat_is_stopped(
    begin: Begin, servers: embedded.Servers, pool: str
) -> None:
    with begin(REJOINDER_DEAD_AFTER_SECONDS="3") as on, sweeping(servers):
        victim = on.worker("victim", pool=pool, queues=[STEPS])
        on.worker("other", queues=[CONTROL])
        on.ready()
        turns = {name: on.start(step) for name, (step, _) in CUT_OFF.items()}
        wait_until(
            lambda: all(
                _chunks(on, turn) == CUT_OFF[name][0]["hang_after"] for name, turn in turns.items()
            ),
            30,
        )
        seen = {name: on.live(turn) for name, turn in turns.items()}
        if pool == "prefork":
            # Its parent is to hear of it only after the stop.
            victim.signal(signal.SIGSTOP)
            for turn in turns.values():
                os.kill(on.owner(turn), signal.SIGKILL)
        else:
            victim.kill()
        for turn in turns.values():
            assert on.client.interrupt(turn.chat_id) is Status.INTERRUPTING
        victim.process.send_signal(signal.SIGCONT)
        on.rest(*turns.values())
        for name, turn in turns.items():
            kept = on.history(turn)[1:]
            assert [role for role, _ in kept] == [role for role, _ in CUT_OFF[name][1]]
            for (_, words), (_, wanted) in zip(kept, CUT_OFF[name][1], strict=True):
                assert words.startswith(wanted)
            assert kept[0][1].startswith(seen[name].strip())
            assert (on.status(turn), on.turn_state(turn)) == ("waiting", "interrupted")
            assert turn.get(timeout=LONG)["state"] == "interrupted"
        assert_invariants(on.world.engine)


def _chunks(on: Play, turn: Turn) -> int:
    parts = [event.data for event in on.events(turn) if event.kind == "part"]
    return sum(int(part["n"]) for part in parts if part["of"] != "end")


KILL = {"text": "Look.", "delay": 0.7, "calls": [{"name": "kill_worker", "arguments": {}}]}
SURVIVED = {"text": "Survived."}


@POOLS
@pytest.mark.timeout(180)
def test_a_chat_that_kills_its_workers_is_given_up_and_takes_nobody_along(
    begin: Begin, servers: embedded.Servers, pool: str
) -> None:
    with begin(REJOINDER_DEAD_AFTER_SECONDS="3") as on, sweeping(servers):
        on.worker("control", queues=[CONTROL])
        victims = [on.worker("victim-0", pool=pool, concurrency=8, queues=[STEPS])]
        on.ready()

        def restart() -> bool:
            """Do what a supervisor does."""
            if not victims[-1].alive:
                victims[-1].stopping = True
                victims.append(
                    on.worker(f"victim-{len(victims)}", pool=pool, concurrency=8, queues=[STEPS])
                )
            return True

        innocent = [on.start({"text": WORDS, "pace": 0.1}) for _ in range(3)]
        poison = on.start(KILL, KILL, KILL, SURVIVED, later=[{"text": "Fine."}])
        wait_until(lambda: restart() and on.is_at_rest(poison), 60, "the end of the poison")
        assert on.row(poison)["last_error"]["kind"] == "worker_lost"
        assert on.row(poison)["crashes"] == 3
        assert [UNKNOWN in words for role, words in on.history(poison) if role == "tool"] == (
            [True] * 3
        )
        with pytest.raises(TurnFailed):
            poison.get(timeout=LONG)
        wait_until(lambda: restart() and on.is_at_rest(*innocent), 30, "the others' end")
        for turn in innocent:
            assert on.row(turn)["last_error"] is None
            assert on.answers(turn) == [WORDS]
        assert len(victims) == (4 if pool == "threads" else 1)
        assert on.client.retry(poison.chat_id).get(timeout=LONG)["text"] == "Survived."
        sent = on.client.send_message(poison.chat_id, "And now?")
        assert sent.get(timeout=LONG)["text"] == "Fine."
        assert_invariants(on.world.engine)


@POOLS
def test_a_message_that_comes_five_times_is_one_step(begin: Begin, pool: str) -> None:
    with begin() as on:
        for name in ("one", "two"):
            on.worker(name, pool=pool)
        on.ready()
        turns = [_unannounced(on, {"text": "One answer.", "delay": 0.2}) for _ in range(5)]

        def ring(turn: Turn) -> None:
            on.client.app.send_task(
                "rejoinder.step",
                kwargs={"chat_id": turn.chat_id},
                task_id=str(on.row(turn)["step_id"]),
                queue=STEPS,
                ignore_result=True,
            )

        with ThreadPoolExecutor(5) as people:
            list(people.map(ring, turns * 5))
        on.rest(*turns)
        wait_until(lambda: on.log().count("Task rejoinder.step[") >= 50, 30, "all messages")
        for turn in turns:
            assert on.answers(turn) == ["One answer."]
            assert on.model_calls(turn) == 1
            statuses = [e.data["status"] for e in on.events(turn) if e.kind == "status"]
            assert statuses == ["running", "waiting"]
        assert_invariants(on.world.engine)


def _unannounced(on: Play, *steps: dict[str, Any]) -> Turn:
    """A chat that nobody has rung for."""
    chat = on.world.new("Go.", model="scripted:inline", options=script(*steps))
    turn_id = str(on.world.row(chat.id)["turn_id"])
    return Turn(str(chat.id), turn_id, "pending", None, on.client)


def test_chats_that_wait_are_never_touched_by_sweeps(
    begin: Begin, servers: embedded.Servers
) -> None:
    with begin(REJOINDER_DEAD_AFTER_SECONDS="2") as on:
        on.worker("control", queues=[CONTROL])
        victim = on.worker("victim", queues=[STEPS])
        on.ready()
        lost = on.start(on.using("hold", "lost"))
        world: World = on.world
        for status, queued, archived in (
            (Status.WAITING, 0, False),
            (Status.WAITING, 0, True),
            (Status.ERROR, 0, False),
            (Status.ERROR, 2, False),
            (Status.ERROR, 0, True),
            (Status.REQUIRES_ACTION, 1, False),
            (Status.SLEEPING, 0, False),
        ):
            world.chat(status, queued=queued, archived=archived)
        answered = on.start({"text": "Done."})
        answered.get(timeout=LONG)
        wait_until(lambda: on.noted("lost"), 30)
        _announce_all(world)
        before = _dump_but(world, lost)
        victim.kill()
        with sweeping(servers, every=0.5):
            wait_until(lambda: on.status(lost) == "pending", 30, "a sweep that did its work")
            swept = on.log().count("Task rejoinder.sweep[")
            wait_until(lambda: on.log().count("Task rejoinder.sweep[") >= swept + 10, 30)
        assert on.row(lost)["crashes"] == 1
        assert _dump_but(world, lost) == before


def _announce_all(world: World) -> None:
    ended = world.read("SELECT id FROM rejoinder.turns WHERE ended_at IS NOT NULL")
    claims.announced(world.engine, [row["id"] for row in ended])


def _dump_but(world: World, turn: Turn) -> dict[str, list[dict[str, Any]]]:
    """All rows but those of one chat."""
    chat_id = UUID(turn.chat_id)
    return {
        table: [row for row in rows if chat_id not in (row["id"], row.get("chat_id"))]
        for table, rows in world.dump().items()
        if table != "idempotency_keys"
    }


SHORT = {"text": "Look.", "calls": [{"name": "add", "arguments": {"a": 1, "b": 2}}]}


def test_children_that_end_after_each_task_lose_nothing_and_leave_no_rows(
    begin: Begin,
) -> None:
    with begin(REJOINDER_DEAD_AFTER_SECONDS=NEVER) as on:
        worker = on.worker(
            "only", pool="prefork", concurrency=2, options=["--max-tasks-per-child=1"]
        )
        on.ready()
        turns = [on.start(SHORT, {"text": "Done."}) for _ in range(4)]
        on.rest(*turns)
        for turn in turns:
            assert on.history(turn)[2:] == [("tool", "✓3"), ("assistant", "Done.")]
        wait_until(lambda: not _rows_of_the_dead(on, worker), 15, "no rows of ended children")
        assert "ended by itself" not in on.log()


def test_a_child_that_is_told_to_end_finishes_its_step_first(begin: Begin) -> None:
    with begin(REJOINDER_DEAD_AFTER_SECONDS=NEVER) as on:
        worker = on.worker("only", pool="prefork", concurrency=2)
        on.ready()
        turn = on.start(on.using("hold", "tool", seconds=1), {"text": "Done."})
        wait_until(lambda: on.noted("tool"), 30)
        os.kill(on.owner(turn), signal.SIGTERM)
        on.rest(turn)
        assert on.history(turn)[2:] == [("tool", "✓held"), ("assistant", "Done.")]
        wait_until(lambda: not _rows_of_the_dead(on, worker), 15, "no rows of ended children")
        assert "the process of its step is gone" not in on.log()


def test_a_pool_that_shrinks_and_grows_loses_nothing_and_leaves_no_rows(
    begin: Begin, servers: embedded.Servers
) -> None:
    with begin(REJOINDER_DEAD_AFTER_SECONDS=NEVER) as on, sweeping(servers):
        worker = on.worker("only", pool="prefork", concurrency=4)
        on.ready()
        control = on.client.app.control
        talks = [on.start({"text": WORDS, "pace": 0.2}) for _ in range(2)]
        wait_until(lambda: all(on.live(turn) for turn in talks), 30)
        before = {child.pid for child in family(worker)}
        short: list[Turn] = []
        for _ in range(4):
            for change in (control.pool_shrink, control.pool_grow):
                change(2, reply=True, timeout=5, limit=1)
                short += [on.start(SHORT, {"text": "Done."}) for _ in range(2)]
        on.rest(*talks, *short)
        assert before != {child.pid for child in family(worker)}, "nobody had to go"
        for turn in short:
            assert on.history(turn)[2:] == [("tool", "✓3"), ("assistant", "Done.")]
        assert [on.answers(turn) for turn in talks] == [[WORDS]] * 2
        wait_until(lambda: not _rows_of_the_dead(on, worker), 15, "no rows of ended children")


def _rows_of_the_dead(on: Play, worker: Member) -> list[str]:
    """Rows of processes that are no longer there."""
    alive = {str(worker.pid), *(str(child.pid) for child in family(worker))}
    rows = on.world.read("SELECT name FROM rejoinder.workers WHERE name LIKE '%:%'")
    return [row["name"] for row in rows if row["name"].rpartition(":")[2] not in alive]
