"""A tool that blocks for ever does not keep a process alive."""

from __future__ import annotations

import subprocess
import sys
import textwrap

from tests.owners import ROOT

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
