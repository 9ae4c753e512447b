"""Temporary folders, removed: by the guardian, by the owner, or (both killed) by a later start.

A later start knows a dead folder by its lock, which every live server of the folder holds. It never
removes a folder that somebody asked to keep: those are not where it looks. Next: `lock.py`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# A younger folder may be one whose guardian has not come to lock it yet.
YOUNG_SECONDS = 120


def remove(run: Path, home: Path, *, kept: bool) -> None:
    """Remove the folders of one run, but not the data that is to be kept."""
    shutil.rmtree(run, ignore_errors=True)
    if not kept:
        shutil.rmtree(home, ignore_errors=True)


def sweep(*parents: Path) -> None:
    """Remove the temporary folders of this user whose owner and guardian were both killed."""
    for parent in parents:
        for lock in parent.glob("rejoinder-*/lock"):
            if _is_dead(lock):
                shutil.rmtree(lock.parent, ignore_errors=True)
                for other in parents:  # sockets and data of one run have folders of one name
                    shutil.rmtree(other / lock.parent.name, ignore_errors=True)


def _is_dead(lock: Path) -> bool:
    try:
        status = lock.lstat()
        if status.st_uid != os.geteuid() or time.time() - status.st_mtime < YOUNG_SECONDS:
            return False
        descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(descriptor)
