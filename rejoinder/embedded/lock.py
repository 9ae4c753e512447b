"""One user at a time of a data folder.

The lock is an `flock` whose descriptor the servers inherit: it is free exactly when the guardian
and both servers are gone, however they went. It never depends on a process id being right; the ids
in the file only tell a second owner whom it met.
"""

from __future__ import annotations

import fcntl
import os
import time
from typing import TYPE_CHECKING

from rejoinder.embedded.errors import ServersError

if TYPE_CHECKING:
    from pathlib import Path

# Servers whose owner is gone are on their way out; this is how long their successor waits for them.
PATIENCE_SECONDS = 30


def hold(home: Path, owner: int) -> int:
    """Take the folder's lock and return its descriptor; refuse if a living owner has it."""
    descriptor = os.open(home / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holders = [int(word) for word in os.pread(descriptor, 64, 0).split()]
            in_use = bool(holders) and all(map(_alive, holders))
            if in_use or time.monotonic() > deadline:
                os.close(descriptor)
                raise ServersError(_refusal(home, holders, in_use=in_use)) from None
            time.sleep(0.05)
        else:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{owner} {os.getpid()}\n".encode(), 0)
            return descriptor


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _refusal(home: Path, holders: list[int], *, in_use: bool) -> str:
    if in_use:
        return (
            f"The servers of {home} are already running, for process {holders[0]}. "
            f"Stop that process, or use its servers (REJOINDER_DATABASE_URL, REJOINDER_REDIS_URL), "
            f"or use another data folder."
        )
    return (
        f"Servers that lost their owner still run on {home} after {PATIENCE_SECONDS} s. "
        f"Stop them by hand (the first line of {home}/postgres/postmaster.pid is a process id)."
    )
