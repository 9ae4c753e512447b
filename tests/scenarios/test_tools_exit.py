"""A tool that blocks for ever keeps no process alive, and costs no other chat its turn."""

from __future__ import annotations

import subprocess
import sys
import textwrap

from tests.owners import ROOT
from tests.scenarios.house import House, noted
from tests.waiting import wait_until

LONG = 60.0

PROGRAM = """
    import threading
    from rejoinder.testing import run_tool
    from rejoinder.tools import tool

    @tool(timeout=0.05)
    def stuck() -> None:
        threading.Event().wait()

    print(run_tool(stuck).content)
"""


def test_a_blocking_tool_does_not_keep_its_process_from_exiting() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "stuck timed out after 0.05 s; it may still be running.\n"
    assert done.stderr == ""


def test_tools_that_do_not_return_are_an_error_result_for_others_not_the_end(house: House) -> None:
    worker = house.worker(concurrency=2, env={"REJOINDER_MAX_ABANDONED_THREADS": "1"})
    held = house.tool("hold", 30)
    stuck = house.start(held, {"text": "Done."})
    wait_until(lambda: noted(held), LONG)
    house.client.interrupt(stuck.chat_id, wait=True)
    add = {"text": "", "calls": [{"name": "add", "arguments": {"a": 1, "b": 2}}]}
    innocent = house.start(add, {"text": "Without it, then."})
    assert innocent.get(timeout=LONG)["text"] == "Without it, then."
    assert "add was not run" in str(house.client.get_messages(innocent.chat_id))
    wait_until(lambda: "do not return: tool hold (1)" in worker.text(), LONG)
    worker.stop()
