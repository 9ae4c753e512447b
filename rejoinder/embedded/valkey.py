"""A Valkey server on a free port of the loopback address, with a random password.

The password goes to the server over stdin and never on a command line. Nothing in it needs to
survive (every row that matters is in Postgres), so a temporary one never writes to disk and a kept
one saves now and then. Next: `children.py`.
"""

from __future__ import annotations

import secrets
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast
from urllib.parse import urlsplit

from rejoinder.embedded import children, places
from rejoinder.embedded.errors import ServersError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rejoinder.embedded.children import Child
    from rejoinder.embedded.order import Order

READY_SECONDS = 30
PORT_ATTEMPTS = 10


def start(order: Order, lock: int, urls: dict[str, str]) -> Iterator[Child]:
    """Yield each server process (to be stopped later); end when one is ready and its URL in `urls`.

    Between our finding a free port and the server's taking it, another program may be faster: then
    the server ends, and the next port is tried.
    """
    home = Path(order.home)
    (home / "valkey").mkdir(mode=0o700, exist_ok=True)
    log = home / "valkey.log"
    if log.exists():
        log.replace(home / "valkey.log.1")
    password = secrets.token_urlsafe(24)
    for _ in range(PORT_ATTEMPTS):
        port = _free_port()
        child = _launch(order, lock)
        yield child
        if _answers(child, order, port, password):
            urls["redis_url"] = f"redis://:{password}@127.0.0.1:{port}/0"
            return
    raise _no_start(log)


def run_again(order: Order, lock: int, url: str, wait: Callable[[], None]) -> Iterator[Child]:
    """Wait, then yield the server, where it was and with the password it had; end when it answers.

    A temporary one has forgotten everything. Nobody may take its port meanwhile, not even a client
    of it: the system may give a connecting socket that very port, and connect it to itself.
    """
    address = urlsplit(url)
    port = address.port or 0
    with socket.socket() as place:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server's own socket
        place.bind(("127.0.0.1", port))
        wait()
        child = _launch(order, lock)
        yield child
        if not _answers(child, order, port, address.password or ""):
            raise _no_start(child.log)


def _launch(order: Order, lock: int) -> Child:
    return children.start(
        [str(places.valkey_binary()), "-"],
        name="valkey",
        log=Path(order.home) / "valkey.log",
        stop_signal=signal.SIGTERM,
        lock=lock,
        stdin=subprocess.PIPE,
    )


def _answers(child: Child, order: Order, port: int, password: str) -> bool:
    data = Path(order.home) / "valkey"
    _configure(child, _settings(data, port, password, kept=order.kept))
    return _ready(child, port, password)


def _no_start(log: Path) -> ServersError:
    return ServersError(
        f"Valkey did not start.\n{places.tail(log)}\n"
        "Fix the cause above, or set REJOINDER_REDIS_URL to a server of yours."
    )


def _settings(data: Path, port: int, password: str, *, kept: bool) -> str:
    lines = [
        "bind 127.0.0.1",
        f"port {port}",
        f"requirepass {password}",
        f'dir "{data}"',
        "databases 16",
        "save 60 1" if kept else 'save ""',
        "daemonize no",
    ]
    return "\n".join(lines) + "\n"


def _configure(child: Child, settings: str) -> None:
    pipe = cast("IO[bytes]", child.process.stdin)
    try:
        pipe.write(settings.encode())
        pipe.close()
    except BrokenPipeError:
        pass  # it is dead already, which `_ready` is about to see


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _ready(child: Child, port: int, password: str) -> bool:
    """Wait until our server (no stranger on its port) answers; False if it ended instead."""
    deadline = time.monotonic() + READY_SECONDS
    while child.process.poll() is None and time.monotonic() < deadline:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
                connection.sendall(f"AUTH {password}\r\nPING\r\n".encode())
                answer = connection.makefile("rb")
                if answer.readline() == b"+OK\r\n" and answer.readline() == b"+PONG\r\n":
                    return True
        except OSError:
            pass  # not listening yet
        time.sleep(0.01)
    return False
