"""What processes used: CPU seconds of whole trees, also of children that are gone, and memory.

A child's CPU time goes to its parent's `children_*` when it is reaped. So a tree has used: the
root's own time, what its reaped children used, and the same of each child that lives.
"""

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

_TRIES = 20
_MIB = 1024.0
_NICE = -10


def stand_apart() -> None:
    """Let this process go before others, if we may say so: it stands for a machine elsewhere.

    Linux shares CPU between sessions first, then among the processes of each.
    """
    with suppress(OSError):
        os.setsid()
    with suppress(OSError):
        os.nice(_NICE)
        Path("/proc/self/autogroup").write_text(f"{_NICE}", encoding="ascii")


def cpu_of(pids: Mapping[str, Iterable[int]]) -> dict[str, float]:
    """CPU seconds so far, by name; each process stands for itself and all below it."""
    return {name: sum(map(_tree, roots)) for name, roots in pids.items()}


def _tree(pid: int) -> float:
    used = 0.0
    for _ in range(_TRIES):
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(pid)
            before = _reaped(root)
            own = root.cpu_times()
            used = own.user + own.system + before
            for child in root.children():
                with suppress(psutil.NoSuchProcess):
                    used += _tree(child.pid)
            if _reaped(root) == before:  # else one went while we looked: counted twice, or never
                break
    return used


def _reaped(process: "psutil.Process") -> float:
    times = process.cpu_times()
    return float(times.children_user + times.children_system)


def forget_peak(pids: Iterable[int]) -> float:
    """Let the peak of these processes' memory begin anew; what they have now, in MiB."""
    now = 0.0
    for pid in pids:
        Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")
        now += _status(pid, "VmRSS")
    return now


def peak(pids: Iterable[int]) -> float:
    """The most memory that these had since then, in MiB: the sum of each one's most."""
    return sum(_status(pid, "VmHWM") for pid in pids)


def _status(pid: int, name: str) -> float:
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    found = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) / _MIB if found else 0.0


def children_named(pid: int, name: str) -> list[int]:
    """Children of a process whose program is called so."""
    return [child.pid for child in psutil.Process(pid).children() if name in child.name()]
