"""A worker that goes: what is at work finishes or is handed back, and another goes on at once."""

import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from rejoinder.client import Turn
from scripts.fleet import Member
from tests.integration.invariants import assert_invariants
from tests.scenarios.house import House, noted
from tests.waiting import wait_until

LONG = 60.0
WELL_WITHIN = 25.0
"""Of the 30 s that Kubernetes gives."""


def gone(member: Member) -> None:
    """The process has ended well, and left nothing behind."""
    assert member.wait(WELL_WITHIN) == 0, member.last_lines()
    text = member.text()
    assert "Traceback" not in text
    assert "the step failed" not in text


def test_a_step_that_finishes_in_time_is_not_done_again(house: House) -> None:
    old = house.worker()
    step = house.tool("hold", 1.5)
    turn = house.start(step, {"text": "Done."})
    wait_until(lambda: noted(step), LONG)
    old.signal(signal.SIGTERM)
    new = house.worker()
    gone(old)
    assert turn.get(timeout=LONG)["text"] == "Done."
    assert noted(step) == ["begin", "end"]
    assert house.roles(turn) == ["user", "assistant", "tool", "assistant"]
    new.stop()


@pytest.mark.parametrize("tool", ["hold", "stubborn", "blocking"])
def test_a_tool_that_does_not_stop_does_not_keep_its_worker(house: House, tool: str) -> None:
    old = house.worker(env={"REJOINDER_DRAIN_SECONDS": "0.5"})
    step = house.tool(tool, 60)
    turn = house.start(step, {"text": "Done."})
    wait_until(lambda: noted(step), LONG)
    new = house.worker()
    began = time.monotonic()
    old.signal(signal.SIGTERM)
    gone(old)
    assert time.monotonic() - began < WELL_WITHIN
    answer = turn.get(timeout=LONG)
    assert (answer["state"], answer["text"]) == ("finished", "Done.")
    (result,) = house.client.get_messages(turn.chat_id)["messages"][2]["parts"]
    assert "unknown" in result["content"]
    assert noted(step) == ["begin"]
    new.stop()


def test_a_result_is_kept_though_the_tool_beside_it_is_not_done(house: House) -> None:
    """What must not run twice has run, and history says what came of it, not that it is unknown."""
    old = house.worker(env={"REJOINDER_DRAIN_SECONDS": "0.5"})
    quick, slow = house.tool("hold", 0), house.tool("hold_async", 60)
    both = {"text": "Look.", "calls": [*quick["calls"], *slow["calls"]]}
    turn = house.start(both, {"text": "Done."})
    for event in house.client.stream(turn.chat_id):  # told once its worker has the result
        if event is not None and event.kind == "tool" and event.data["state"] == "finished":
            break
    wait_until(lambda: noted(slow), LONG)
    new = house.worker()
    old.signal(signal.SIGTERM)
    gone(old)
    assert turn.get(timeout=LONG)["text"] == "Done."
    results = house.client.get_messages(turn.chat_id)["messages"][2]["parts"]
    assert [(result["content"], result["is_error"]) for result in results] == [("held", False)] * 2
    assert noted(quick) == ["begin", "end"]
    assert noted(slow) == ["begin", "begin", "end"]
    new.stop()


def test_nothing_is_claimed_after_the_signal(house: House) -> None:
    old = house.worker(env={"REJOINDER_DRAIN_SECONDS": "3"})
    long = house.start({"text": "one two three", "pace": 0.7})
    wait_until(lambda: house.row(long)["status"] == "running", LONG)
    old.signal(signal.SIGTERM)
    wait_until(lambda: "shutdown (MainProcess)" in old.text(), LONG)
    late = [house.start({"text": "Late."}) for _ in range(5)]
    gone(old)
    assert {house.row(turn)["status"] for turn in late} == {"pending"}
    assert {house.row(turn)["lease_id"] for turn in late} == {None}
    new = house.worker()
    for turn in late:
        assert turn.get(timeout=LONG)["text"] == "Late."
    assert long.get(timeout=LONG)["text"] == "one two three"
    new.stop()


def test_a_signal_for_every_process_of_a_service_hands_back_all(house: House) -> None:
    """What systemd does: SIGTERM for the main process and for its children, at once."""
    old = house.worker(env={"REJOINDER_DRAIN_SECONDS": "0.5"})
    steps = [house.tool("hold_async", 30) for _ in range(3)]
    turns = [house.start(step, {"text": "Done."}) for step in steps]
    for step in steps:
        wait_until(lambda step=step: noted(step), LONG)  # type: ignore[misc]
    family = psutil.Process(old.pid).children(recursive=True)
    old.signal(signal.SIGTERM)
    for child in family:
        child.terminate()
    new = house.worker()
    gone(old)
    for turn in turns:
        assert turn.get(timeout=LONG)["text"] == "Done."
        assert house.row(turn)["crashes"] == 0
    new.stop()


def test_a_soft_shutdown_leaves_time_and_then_hands_back(house: House) -> None:
    env = {"REMAP_SIGTERM": "SIGQUIT", "REJOINDER_DRAIN_SECONDS": "60"}
    old = house.worker("--", "worker.soft_shutdown_timeout=2", env=env)
    short, long = house.tool("hold", 1.0), house.tool("hold_async", 30)
    turns = [house.start(step, {"text": "Done."}) for step in (short, long)]
    for step in (short, long):
        wait_until(lambda step=step: noted(step), LONG)  # type: ignore[misc]
    old.signal(signal.SIGTERM)
    new = house.worker()
    gone(old)
    for turn in turns:
        assert turn.get(timeout=LONG)["text"] == "Done."
    assert noted(short) == ["begin", "end"]
    new.stop()


def test_a_worker_that_went_leaves_no_row(house: House) -> None:
    old = house.worker()
    house.start({"text": "Hello."}).get(timeout=LONG)
    rows = "SELECT name FROM rejoinder.workers WHERE name LIKE :n"
    family = [old.pid, *(child.pid for child in psutil.Process(old.pid).children())]
    old.signal(signal.SIGTERM)
    gone(old)
    names = [f"{socket.gethostname()}:{pid}" for pid in family]
    wait_until(lambda: not [n for n in names if house.world.read(rows, n=n)], 10, "no rows")


@pytest.mark.timeout(300)
def test_a_rolling_deploy_under_load_loses_and_doubles_nothing(house: House) -> None:
    """Three workers, each replaced by a new one, twice, while 60 chats are at work."""
    size = 20 if house.pool == "threads" else 8
    env = {"REJOINDER_DRAIN_SECONDS": "1"}
    workers = [house.worker(concurrency=size, env=env) for _ in range(3)]
    add = {"text": "a b c", "pace": 0.5, "calls": [{"name": "add", "arguments": {"a": 1, "b": 2}}]}
    done = threading.Event()
    results: list[list[Turn]] = []

    def talk(number: int) -> None:
        turns = [house.start(add, add, {"text": "Done."}, words=f"{number}")]
        results.append(turns)
        while turns[-1].get(timeout=LONG) and not done.wait(3):
            turns.append(house.client.send_message(turns[0].chat_id, f"{number}.{len(turns)}"))

    with ThreadPoolExecutor(60) as pool:
        talks = [pool.submit(talk, number) for number in range(60)]
        for _ in range(6):
            leaving = workers.pop(0)
            workers.append(house.worker(concurrency=size, env=env))
            leaving.signal(signal.SIGTERM)
            gone(leaving)
        done.set()
        for task in talks:
            task.result(timeout=2 * LONG)
    one_turn = ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    for turns in results:
        rows = house.world.read(
            "SELECT role, parts FROM rejoinder.messages WHERE chat_id = :c ORDER BY id",
            c=turns[0].chat_id,
        )
        assert [row["role"] for row in rows] == one_turn * len(turns)
        words = [row["parts"][0]["text"] for row in rows if row["role"] == "user"]
        assert words == [words[0], *(f"{words[0]}.{n}" for n in range(1, len(turns)))]
        row = house.row(turns[0])
        assert (row["status"], row["crashes"], row["attempt"]) == ("waiting", 0, 0)
    failed = "SELECT id FROM rejoinder.turns WHERE state <> 'finished'"
    mine = [turn.turn_id for turns in results for turn in turns]
    assert len(mine) > 120
    assert not [row for row in house.world.read(failed) if str(row["id"]) in mine]
    assert_invariants(house.world.engine)
