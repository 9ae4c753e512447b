"""Each step leaves a row that says who ran it, how it ended, and where its time went."""

import signal
import socket
from typing import Any

from click.testing import CliRunner

from rejoinder.cli import main
from rejoinder.client import Turn
from tests.scenarios.house import House, noted
from tests.waiting import wait_until

LONG = 60.0
ADD = {"text": "Let me see.", "calls": [{"name": "add", "arguments": {"a": 1, "b": 2}}]}
SPENT = ("claim_ms", "load_ms", "model_ms", "tools_ms", "write_ms")


def steps(house: House, turn: Turn) -> list[dict[str, Any]]:
    """Oldest first."""
    found: list[dict[str, Any]] = house.client.get_steps(turn.chat_id)["steps"][::-1]
    return found


def test_a_step_tells_where_its_time_went(house: House) -> None:
    worker = house.worker(concurrency=2)
    stumble = {"kind": "overloaded", "times": 1, "retry_after": 0.1}
    turn = house.start({**ADD, "pace": 0.05}, {"text": "Done.", "fail": [stumble]})
    assert turn.get(timeout=LONG)["text"] == "Done."
    told = steps(house, turn)
    assert [step["outcome"] for step in told] == ["commit", "retry_later", "finish_turn"]
    assert [step["attempt"] for step in told] == [0, 0, 1]
    assert {step["turn_id"] for step in told} == {turn.turn_id}
    assert len({step["task_id"] for step in told}) == 3
    assert all(step["worker"].startswith(f"{socket.gethostname()}:") for step in told)
    first, _, last = told
    assert all(first[name] > 0 for name in SPENT)
    assert first["model_ms"] > 50
    assert (last["tools_ms"], last["output_tokens"] > 0, first["input_tokens"] > 0) == (
        None,
        True,
        True,
    )
    page = house.client.get_steps(turn.chat_id, limit=2)
    assert [step["outcome"] for step in page["steps"]] == ["finish_turn", "retry_later"]
    rest = house.client.get_steps(turn.chat_id, before=page["next"])
    assert ([step["outcome"] for step in rest["steps"]], rest["next"]) == (["commit"], None)
    worker.stop()


def test_steps_that_were_cut_short_tell_how(house: House) -> None:
    old = house.worker(env={"REJOINDER_DRAIN_SECONDS": "0.5"})
    held = house.tool("hold_async", 30)
    turn = house.start(held, {"text": "Done."})
    wait_until(lambda: noted(held), LONG)
    new = house.worker()
    old.signal(signal.SIGTERM)
    assert turn.get(timeout=LONG)["text"] == "Done."
    released, again, _ = steps(house, turn)
    assert (released["outcome"], again["outcome"]) == ("release", "commit")
    assert released["tools_ms"] > 100
    assert again["worker"] != released["worker"]
    talk = house.start({"text": "one two three four", "pace": 5})
    wait_until(lambda: house.row(talk)["status"] == "running", LONG)
    house.client.interrupt(talk.chat_id, wait=True)
    (stopped,) = steps(house, talk)
    assert (stopped["outcome"], stopped["tools_ms"]) == ("finish_interrupt", None)
    new.stop()


def test_the_command_line_shows_them(house: House) -> None:
    worker = house.worker(concurrency=2)
    turn = house.start(ADD, {"text": "Done."})
    turn.get(timeout=LONG)
    shown = CliRunner(env=house.fleet.env).invoke(main, ["show", turn.chat_id, "--steps"])
    head, first, last = shown.output.splitlines()
    assert " ".join(head.split()).startswith("began outcome all ms claim load model tools write in")
    assert (first.split()[1], last.split()[1]) == ("commit", "finish_turn")
    assert last.split()[6] == "-"
    worker.stop()
