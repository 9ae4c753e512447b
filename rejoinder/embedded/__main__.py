"""The guardian: owns the embedded servers for one owner process, and ends when that one does.

It reports one line of JSON on stdout (URLs, or an error), then waits: for the end of its stdin
(which the owner holds open), for another parent than the owner (the owner is dead, though a fork of
it may still hold that pipe), or for a signal. Then it stops the servers cleanly and removes the run
folder. It restarts a server only when a line of its stdin asks for that; each such line is answered
by one on stdout. Next: `children.py` for what happens if it is killed itself.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rejoinder.embedded import leftovers, lock, postgres, valkey
from rejoinder.embedded.errors import ServersError
from rejoinder.embedded.order import Order, Restart, Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import FrameType

    from rejoinder.embedded.children import Child

STOP_SECONDS = 40
OWNER_CHECK_SECONDS = 0.5
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(order: Order) -> int:
    """Start what is ordered, guard it, stop it."""
    for number in SIGNALS:
        signal.signal(number, _leave)
    children: list[Child] = []
    try:
        held = lock.hold(Path(order.home), order.owner)
        urls = _start(order, held, children)
        _report(urls)
        owner = _Owner(order.owner)
        again: dict[Server, Callable[[Callable[[], None]], Iterator[Child]]] = {
            "postgres": partial(postgres.run_again, order, held),
            "valkey": partial(valkey.run_again, order, held, urls.get("redis_url", "")),
        }
        while (line := owner.says()) is not None:
            asked = Restart(**json.loads(line))
            _report(_restarted(asked, again, children, owner.wait))
    except (ServersError, OSError) as error:
        _report({"error": str(error) or repr(error)})
        return 1
    else:
        return 0
    finally:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        _stop(children)
        leftovers.remove(Path(order.run), Path(order.home), kept=order.kept)


def _start(order: Order, held: int, children: list[Child]) -> dict[str, str]:
    """Start the servers; `children` has each of them from the moment it is a process."""
    urls: dict[str, str] = {}
    if order.valkey:
        for child in valkey.start(order, held, urls):
            children.append(child)  # noqa: PERF402  extend() would lose the ones before a failure
    if order.postgres:
        for child in postgres.start(order, held):
            children.append(child)  # noqa: PERF402  as above
        urls["database_url"] = postgres.url(order)
    return urls


def _report(answer: dict[str, str]) -> None:
    try:
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        pass  # the owner is gone, which the wait will notice


class _Owner:
    """The process that we guard the servers for: what it says, and whether it is still there."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._said = b""

    def says(self) -> bytes | None:
        """The next line it says; None once it is gone."""
        while b"\n" not in self._said:
            if not self._listen(OWNER_CHECK_SECONDS):
                return None
        line, _, self._said = self._said.partition(b"\n")
        return line

    def wait(self, seconds: float) -> None:
        """Wait so long, but not for an owner that is gone."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and self._listen(min(left, OWNER_CHECK_SECONDS)):
            pass

    def _listen(self, seconds: float) -> bool:
        """Hear what it says for so long; False once it is gone."""
        readable, _, _ = select.select([sys.stdin], [], [], seconds)
        if readable:
            heard = os.read(sys.stdin.fileno(), 65536)
            self._said += heard
            return bool(heard)
        return os.getppid() == self._pid


def _restarted(
    asked: Restart,
    again: Mapping[Server, Callable[[Callable[[], None]], Iterator[Child]]],
    children: list[Child],
    wait: Callable[[float], None],
) -> dict[str, str]:
    """End a server, wait, start it again; what to report of that."""
    old = next(each for each in reversed(children) if each.name == asked.server)
    try:
        old.leave(STOP_SECONDS, kill=asked.kill)
        children.remove(old)
        for child in again[asked.server](lambda: wait(asked.down_seconds)):
            children.append(child)  # noqa: PERF402  as above
    except (ServersError, OSError) as error:
        return {"error": str(error) or repr(error)}
    return {"restarted": asked.server}


def _stop(children: list[Child]) -> None:
    for child in children:
        child.stop()
    deadline = time.monotonic() + STOP_SECONDS
    for child in children:
        child.join(max(0.0, deadline - time.monotonic()))


def _leave(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)


if __name__ == "__main__":
    sys.exit(main(Order(**json.loads(sys.argv[1]))))
