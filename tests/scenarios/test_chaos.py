"""A short chaos run on each pool: faults every two or three seconds, and nothing is found."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from scripts.chaos_parts.ledger import VARIABLE
from tests.programs import program
from tests.waiting import wait_until

LONG = 300.0


def left_behind(logs: Path) -> Iterator[psutil.Process]:
    """Processes of a fleet that wrote to this folder."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(VARIABLE, "").startswith(str(logs)):
                yield process


@pytest.mark.timeout(400)
@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_nothing_is_lost_stuck_doubled_or_out_of_order(pool: str, tmp_path: Path) -> None:
    figures, logs = tmp_path / "figures.json", tmp_path / "logs"
    options = ["--quick", "--seconds", "20", "--seed", "3", "--chats", "12", "--pool", pool]
    kept = ["--json", str(figures), "--logs", str(logs)]
    with program("scripts/chaos.py", *options, *kept) as chaos:
        wait_until(lambda: "PASS" in chaos.text or "FAIL" in chaos.text, LONG, "a verdict")
        assert chaos.end() == 0, chaos.text
    assert list(left_behind(logs)) == []
    told = json.loads(figures.read_text())
    assert told["verdict"] == "pass"
    assert told["counts"]["turns finished"] > 10
    assert sum(told["faults"].values()) >= 5


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    options = ["--quick", "--seconds", "60", "--chats", "4", "--logs", str(tmp_path)]
    with program("scripts/chaos.py", *options) as chaos:
        chaos.wait_for("chats, and a fault")
        assert list(left_behind(tmp_path))
        chaos.signal()
        assert chaos.end() == 130, chaos.text
    assert list(left_behind(tmp_path)) == []
