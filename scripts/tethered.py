"""Become another program that cannot outlive the process that started it.

`python tethered.py PARENT PROGRAM …`: on Linux the kernel kills the program when its parent is
gone, however it went. Elsewhere it just runs the program; the parent's own clean-up has to do.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(parent: int, program: list[str]) -> None:
    """Tie the knot, then become the program."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # it died before the line above
            sys.exit(1)
    os.execv(program[0], program)  # noqa: S606  # a list, never a shell


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
