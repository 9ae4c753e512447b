"""Server processes as children of the guardian: started in the foreground, stopped with a deadline.

A child never outlives its guardian: the guardian stops it, and on Linux the kernel signals it when
the guardian is killed. It holds the lock of its data folder for as long as it lives, so that nobody
starts a second server on the same files. Next: `__main__.py`.
"""

from __future__ import annotations

import ctypes
import os
import select
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from rejoinder.embedded.errors import ServersError

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from pathlib import Path

    from rejoinder.embedded.places import Account

PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Child:
    """A running server (or its installer), and how it is asked to stop."""

    name: str
    process: subprocess.Popen[bytes]
    stop_signal: signal.Signals
    log: Path
    life: int
    """The end of a pipe whose other end the process and all its forks hold, and nobody else."""

    def stop(self) -> None:
        """Ask it to stop; returns at once."""
        if self.process.poll() is None:
            self.process.send_signal(self.stop_signal)

    def join(self, seconds: float) -> None:
        """Wait for its end, and bring it about if that takes too long."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def leave(self, seconds: float, *, kill: bool) -> None:
        """End it, and wait until its last fork is gone too: only then may another one start.

        A killed Postgres leaves its sessions behind; each goes when it notices.
        """
        if kill and self.process.poll() is None:
            self.process.kill()
        self.stop()
        self.join(seconds)
        gone, _, _ = select.select([self.life], [], [], seconds)
        if not gone:
            raise ServersError(f"A process of {self.name} does not end; see {self.log}.")
        os.close(self.life)


def start(  # noqa: PLR0913  one call site per server, all by keyword
    command: list[str],
    *,
    name: str,
    log: Path,
    stop_signal: signal.Signals,
    lock: int,
    account: Account | None = None,
    stdin: int = subprocess.DEVNULL,
) -> Child:
    """Start a server in the foreground, its output going to `log`."""
    life, held = os.pipe()
    try:
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=clean_environment(),
                cwd="/",
                pass_fds=[lock, held],
                preexec_fn=_die_with_guardian(stop_signal),  # noqa: PLW1509  we have one thread
                **_as(account),
            )
    finally:
        os.close(held)
    return Child(name, process, stop_signal, log, life)


class _Identity(TypedDict, total=False):
    user: int
    group: int
    extra_groups: list[int]


def _as(account: Account | None) -> _Identity:
    """Popen's arguments that run a program as this account."""
    if account is None:
        return {}
    return {"user": account.uid, "group": account.gid, "extra_groups": []}


def clean_environment() -> dict[str, str]:
    """No PG*, LC_* or LD_* variable of the user may change how a server runs."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}


def _die_with_guardian(stop_signal: signal.Signals) -> Callable[[], None] | None:
    """For Popen's preexec_fn: the kernel signals the child when the guardian is killed (Linux).

    Popen runs it after the change of user, which would have cleared the setting.
    """
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)  # loaded before the fork
    guardian = os.getpid()

    def arm() -> None:
        libc.prctl(PR_SET_PDEATHSIG, int(stop_signal), 0, 0, 0)
        if os.getppid() != guardian:  # killed between the fork and the line above
            os._exit(1)

    return arm
