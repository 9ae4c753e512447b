"""`make demo`: the turn survives its worker, and the demo leaves nothing behind."""

import re
import signal

from tests.programs import assert_gone, program

DEMO = "scripts/demo.py"


def test_the_demo_stops_one_worker_and_kills_another_and_the_turn_is_completed() -> None:
    with program(DEMO) as demo:
        demo.wait_for("── SIGKILL for worker")
        family = demo.family()
        assert demo.end() == 0, demo.text
    assert "── SIGTERM for worker" in demo.text
    assert len(re.findall(r"── worker [ABC] goes on, \d+\.\d s after", demo.text)) == 2
    assert "✓ One turn of three model calls and five tool calls" in demo.text
    assert len(re.findall(r"  \d+ assistant Bonn is 7 degrees warmer", demo.text)) == 1
    assert_gone(family)


def test_ctrl_c_in_the_middle_leaves_no_process() -> None:
    with program(DEMO) as demo:
        demo.wait_for("Let me look")
        family = demo.family()
        demo.signal(signal.SIGINT)
        assert demo.end() == 128 + signal.SIGINT
        assert "Traceback" not in demo.text
    assert family
    assert_gone(family)
