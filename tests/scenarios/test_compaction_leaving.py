"""A worker that goes while it has a summary written: another one begins it anew, and goes on."""

import signal

import pytest

from rejoinder.client import Turn, TurnFailed
from rejoinder.embedded import Servers
from tests.integration.invariants import assert_invariants
from tests.scenarios.house import House
from tests.scenarios.plays import sweeping
from tests.waiting import wait_until

LONG = 60.0
LOOK = {
    "text": "Look.",
    "calls": [{"name": "add", "arguments": {"a": 1, "b": 2}}],
    "usage": {"input_tokens": 150_000},
}
SLOW = {"text": "one two three four five six seven eight", "pace": 0.4}


def summarising(house: House) -> Turn:
    """A chat in the middle of its summary."""
    script = {"turns": [[LOOK, {"text": "Done."}]], "summary": SLOW}
    turn = house.client.create_chat(
        "Go.", owner="joe", model="scripted:inline", options={"extra": {"script": script}}
    )
    for event in house.client.stream(turn.chat_id):
        if event and event.kind == "compaction" and event.data["state"] == "part":
            return turn
    raise AssertionError


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_summary_of_a_worker_that_goes_is_written_by_the_next(
    house: House, servers: Servers, how: signal.Signals
) -> None:
    old = house.worker(env={"REJOINDER_DRAIN_SECONDS": "0.3"})
    turn = summarising(house)
    if how is signal.SIGTERM:
        old.signal(how)
    else:
        old.kill()
    new = house.worker()
    with sweeping(servers):
        assert turn.get(timeout=LONG)["text"] == "Done."
    assert house.roles(turn) == ["user", "assistant", "tool", "assistant", "assistant"]
    begun = 0
    for event in house.client.stream(turn.chat_id):
        if event and event.kind == "compaction":
            begun += event.data["state"] == "started"
            if event.data["state"] == "finished":
                break
    assert begun == 2
    kept = (
        "SELECT count(*) AS n FROM rejoinder.messages WHERE visibility = 'model' AND chat_id = :c"
    )
    assert house.world.read(kept, c=turn.chat_id) == [{"n": 1}]
    new.stop()
    assert_invariants(house.world.engine)


def test_a_stop_after_the_worker_died_finds_nothing_of_the_summary_to_keep(
    house: House, servers: Servers
) -> None:
    old = house.worker()
    turn = summarising(house)
    old.kill()
    house.client.interrupt(turn.chat_id)
    with sweeping(servers):
        assert turn.get(timeout=LONG)["state"] == "interrupted"
    assert house.row(turn)["status"] == "waiting"
    assert house.roles(turn) == ["user", "assistant", "tool"]


def test_a_summary_that_is_nearly_done_is_finished_before_the_worker_goes(house: House) -> None:
    old = house.worker(env={"REJOINDER_DRAIN_SECONDS": "20"})
    turn = summarising(house)
    old.signal(signal.SIGTERM)
    assert old.wait(LONG) == 0
    wait_until(lambda: len(house.roles(turn)) == 4)
    assert house.row(turn)["status"] == "pending"
    new = house.worker()
    assert turn.get(timeout=LONG)["text"] == "Done."
    new.stop()


def test_a_model_for_summaries_that_does_not_exist_is_told_at_once(house: House) -> None:
    worker = house.worker(env={"REJOINDER_COMPACTION_MODEL": "nobody:model"})
    turn = house.start({"text": "Hi."})
    with pytest.raises(TurnFailed, match="nobody") as caught:
        turn.get(timeout=LONG)
    assert caught.value.kind == "config"
    worker.stop()
