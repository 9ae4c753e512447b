"""Sub-agents whose workers die, and who are many: each works once, and nobody waits for ever."""

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from uuid import UUID

import pytest

from rejoinder import embedded
from rejoinder.client import Turn
from tests.integration.invariants import assert_invariants
from tests.scenarios.delegating import (
    SAY,
    acting,
    calling,
    delegate,
    outcome,
    results,
    spawning,
    waiting,
)
from tests.scenarios.plays import CONTROL, STEPS, Begin, Play, play, sweeping
from tests.waiting import wait_until

PARENTS, CHILDREN, SLOTS = 100, 3, 4
NEVER = "3600"


@pytest.fixture
def begin(servers: embedded.Servers, make_database: Callable[[], str], tmp_path: Path) -> Begin:
    def start(**settings: str) -> AbstractContextManager[Play]:
        return play(servers, make_database(), tmp_path, **settings)

    return start


def kin(on: Play, turn: Turn) -> list[UUID]:
    rows = on.world.read(
        "SELECT id FROM rejoinder.chats WHERE parent_id = :id ORDER BY id", id=turn.chat_id
    )
    return [row["id"] for row in rows]


def asleep(on: Play, turn: Turn) -> None:
    wait_until(lambda: on.status(turn) == "sleeping", 30, "a sleeping parent")


def test_a_hundred_parents_with_three_children_each_finish_on_four_slots(begin: Begin) -> None:
    with begin(REJOINDER_DEAD_AFTER_SECONDS=NEVER) as on:
        on.worker("only", concurrency=SLOTS)
        on.ready()
        child = acting(on.folder, {"text": "My part is done.", "delay": 0.01})
        parent = acting(on.folder, spawning(*[child] * CHILDREN), waiting(CHILDREN), SAY)
        with ThreadPoolExecutor(8) as pool:
            turns = [*pool.map(lambda _: delegate(on.client, parent), range(PARENTS))]
            told = [*pool.map(lambda turn: outcome(turn, 120), turns)]
        for each in told:
            assert [agent["report"] for agent in each["agents"]] == ["My part is done."] * CHILDREN
            assert not each["timed_out"]
        assert all(len(kin(on, turn)) == CHILDREN for turn in turns)
        assert_invariants(on.world.engine)


def test_a_sleeping_parent_outlives_its_worker(begin: Begin, servers: embedded.Servers) -> None:
    with begin(REJOINDER_DEAD_AFTER_SECONDS="3") as on, sweeping(servers):
        on.worker("door", queues=[CONTROL])
        worker = on.worker("mortal", queues=[STEPS])
        on.ready()
        child = acting(on.folder, on.using("hold_async", "child"), {"text": "Still here."})
        turn = delegate(on.client, acting(on.folder, spawning(child), waiting(1), SAY))
        asleep(on, turn)
        wait_until(lambda: on.noted("child"), 30)
        worker.kill()  # the parent's, and the child's: it runs again elsewhere
        on.worker("next", queues=[STEPS])
        assert outcome(turn)["agents"][0]["report"] == "Still here."
        assert on.noted("child") == ["begin", "begin", "end"]
        assert on.row(turn)["crashes"] == 0, "a parent that sleeps has no worker that could die"
        assert_invariants(on.world.engine)


def test_a_child_whose_process_is_killed_goes_on_and_is_heard(
    begin: Begin, servers: embedded.Servers
) -> None:
    with begin(REJOINDER_DEAD_AFTER_SECONDS="3") as on, sweeping(servers):
        on.worker("only", pool="prefork", concurrency=2)
        on.ready()
        child = acting(on.folder, on.using("hold", "0"), {"text": "After all."})
        turn = delegate(on.client, acting(on.folder, spawning(child), waiting(1), SAY))
        asleep(on, turn)
        (child_id,) = kin(on, turn)
        wait_until(lambda: on.noted("0"), 30)
        os.kill(on.owner(Turn(str(child_id), "", "", None, on.client)), signal.SIGKILL)
        assert outcome(turn)["agents"][0]["report"] == "After all."
        assert_invariants(on.world.engine)


def test_a_spawn_that_is_run_again_after_a_death_spawns_once(
    begin: Begin, servers: embedded.Servers
) -> None:
    with begin(REJOINDER_DEAD_AFTER_SECONDS="3") as on, sweeping(servers):
        on.worker("door", queues=[CONTROL])
        worker = on.worker("mortal", queues=[STEPS])
        on.ready()
        spawn = spawning(acting(on.folder, {"text": "Once."}))
        both = {"calls": [*spawn["calls"], *on.using("hold_async", "along")["calls"]]}
        turn = delegate(on.client, acting(on.folder, both, waiting(1), SAY))
        wait_until(lambda: kin(on, turn) and on.noted("along"), 30)
        worker.kill()  # after the child was born, before its id stands in history
        on.worker("next", queues=[STEPS])
        assert outcome(turn)["agents"][0]["report"] == "Once."
        assert len(kin(on, turn)) == 1
        assert results(on.client, turn.chat_id)[0]["chat_id"] == str(kin(on, turn)[0])
        assert_invariants(on.world.engine)


def test_a_chat_below_cannot_wait_for_those_above(begin: Begin) -> None:
    with begin(REJOINDER_AGENT_DEPTH="2") as on:
        on.worker("only")
        on.ready()
        child = acting(
            on.folder, calling("wait_agent", chat_id="{user}"), spawning("scripted:echo"), SAY
        )
        spawn = calling("spawn_agent", prompt="{user}", model=child)
        parent = acting(on.folder, {"text": "Yes?"}, later=[[spawn, waiting(1), SAY]])
        turn = delegate(on.client, parent)
        turn.get(timeout=30)
        outcome(on.client.send_message(turn.chat_id, turn.chat_id))
        (child_id,) = kin(on, turn)
        refused, born = results(on.client, str(child_id))
        assert "No agent of yours" in refused
        assert born["title"] == "nr 0"


def test_a_chat_waits_for_one_that_is_two_below(begin: Begin) -> None:
    with begin(REJOINDER_AGENT_DEPTH="2", REJOINDER_DEAD_AFTER_SECONDS=NEVER) as on:
        on.worker("only")
        on.ready()
        grandchild = acting(on.folder, {"text": "From far below.", "delay": 3.0})
        child = acting(on.folder, spawning(grandchild), {"text": "{result:0.chat_id}"})
        far = calling("wait_agent", chat_id="{result:0.agents.0.report}")
        turn = delegate(on.client, acting(on.folder, spawning(child), waiting(1), far, SAY))
        told = outcome(turn, 30)  # and no sweep comes to help
        assert told["agents"][0]["report"] == "From far below."


def test_a_tree_has_no_more_chats_than_allowed(begin: Begin) -> None:
    with begin(REJOINDER_AGENTS_TOTAL="3") as on:
        on.worker("only")
        on.ready()
        parent = acting(on.folder, spawning(*["scripted:echo"] * 3), {"text": "Well."})
        turn = delegate(on.client, parent)
        turn.get(timeout=30)
        refused = [text for text in results(on.client, turn.chat_id) if isinstance(text, str)]
        assert len(refused) == 1
        assert "3 chats already" in refused[0]
        assert len(kin(on, turn)) == 2
