"""The guardian: owns the embedded servers for one owner process, and ends when that one does.

It reports one line of JSON on stdout (URLs, or an error), then waits: for the end of its stdin
(which the owner holds open), for another parent than the owner (the owner is dead, though a fork of
it may still hold that pipe), or for a signal. Then it stops the servers cleanly and removes the run
folder. It never restarts a server. Next: `children.py` for what happens if it is killed itself.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rejoinder.embedded import leftovers, lock, postgres, valkey
from rejoinder.embedded.errors import ServersError
from rejoinder.embedded.order import Order

if TYPE_CHECKING:
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
        urls = _start(order, children)
        _report(urls)
        _wait_for_the_end_of(order.owner)
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


def _start(order: Order, children: list[Child]) -> dict[str, str]:
    """Start the servers; `children` has each of them from the moment it is a process."""
    urls: dict[str, str] = {}
    held = lock.hold(Path(order.home), order.owner)
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


def _wait_for_the_end_of(owner: int) -> None:
    while os.getppid() == owner:
        readable, _, _ = select.select([sys.stdin], [], [], OWNER_CHECK_SECONDS)
        if readable:
            return


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
