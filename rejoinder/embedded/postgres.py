"""A Postgres cluster: made once, started in the foreground, on a Unix socket only.

Anyone who can open the socket is let in, so the folder it is in is private (0700). It never listens
on TCP and never daemonizes. Durability follows the order: a temporary cluster skips fsync, since a
machine that crashes takes it along anyway. Next: `children.py`.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rejoinder.embedded import children, places
from rejoinder.embedded.errors import ServersError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rejoinder.embedded.children import Child
    from rejoinder.embedded.order import Order

DATABASE = "rejoinder"
PORT = "5432"  # only a part of the socket's name; given everywhere, or PGPORT would replace it
READY_SECONDS = 60
INITDB_SECONDS = 120

SETTINGS = {
    "listen_addresses": "",
    "max_connections": "200",  # a fleet of workers on one laptop
    "shared_buffers": "64MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
}
FAST_SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",  # wal_level=minimal demands it
    "dynamic_shared_memory_type": "mmap",  # in the folder: removed with it even after a SIGKILL
}


def start(order: Order, lock: int) -> Iterator[Child]:
    """Yield each process once it exists (so that it can be stopped); end when all is ready."""
    run, home = Path(order.run), Path(order.home)
    binaries = places.postgres_binaries(run)
    cluster = home / "postgres"
    log = home / "postgres.log"
    if log.exists():
        log.replace(home / "postgres.log.1")
    if not (cluster / "PG_VERSION").exists():
        yield from _initialise(cluster, binaries, log, lock, durable=order.durable)
    yield from _run(order, lock)
    names = _psql(binaries, run, "SELECT datname FROM pg_database").stdout.split()
    if DATABASE.encode() not in names:
        made = _psql(binaries, run, f"CREATE DATABASE {DATABASE}")
        if made.returncode != 0:
            raise ServersError(f"Postgres made no database: {made.stderr.decode()}")


def run_again(order: Order, lock: int, wait: Callable[[], None]) -> Iterator[Child]:
    """Wait, then yield the server on the same cluster and socket; end when it answers."""
    wait()
    yield from _run(order, lock)


def _run(order: Order, lock: int) -> Iterator[Child]:
    run, home = Path(order.run), Path(order.home)
    binaries = places.postgres_binaries(run)
    cluster = home / "postgres"
    # A pid file that is still here is stale: we hold the lock that every live server of this folder
    # holds. Postgres would refuse to start if its number now belongs to another process.
    (cluster / "postmaster.pid").unlink(missing_ok=True)
    settings = SETTINGS if order.durable else SETTINGS | FAST_SETTINGS
    command = [str(binaries / "postgres"), "-D", str(cluster), "-k", str(run), "-p", PORT]
    command += [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    child = children.start(
        command,
        name="postgres",
        log=home / "postgres.log",
        stop_signal=signal.SIGINT,  # "fast": ends the sessions, then a clean checkpoint
        lock=lock,
        account=places.postgres_account(),
    )
    yield child
    _wait_until_ready(child, binaries, run)


def url(order: Order) -> str:
    """Where SQLAlchemy finds the database."""
    return f"postgresql+psycopg2://postgres@/{DATABASE}?host={order.run}&port={PORT}"


def _initialise(
    cluster: Path, binaries: Path, log: Path, lock: int, *, durable: bool
) -> Iterator[Child]:
    """Make the cluster under another name first: an interrupted initdb leaves nothing half-made."""
    account = places.postgres_account()
    unfinished = cluster.with_name("postgres.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(mode=0o700)
    places.give(unfinished, account)
    command = [str(binaries / "initdb"), "-D", str(unfinished), "-U", "postgres"]
    # The builtin locale is the same on every machine; minimal containers have no others.
    command += ["--encoding=UTF8", "--locale=C", "--locale-provider=builtin"]
    command += ["--builtin-locale=C.UTF-8", "--auth=trust", "--no-instructions"]
    if not durable:
        command.append("--no-sync")
    child = children.start(
        command, name="initdb", log=log, stop_signal=signal.SIGTERM, lock=lock, account=account
    )
    yield child
    child.join(INITDB_SECONDS)
    if child.process.returncode != 0:
        message = (
            f"Postgres' initdb failed.\n{places.tail(log)}\n"
            "Check free disk space, the folder's owner and that this user has a name (an entry in "
            "/etc/passwd), or set REJOINDER_DATABASE_URL."
        )
        raise ServersError(message)
    unfinished.rename(cluster)


def _wait_until_ready(child: Child, binaries: Path, run: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while _psql(binaries, run, "SELECT 1").returncode != 0:
        if child.process.poll() is not None or time.monotonic() > deadline:
            message = (
                f"Postgres did not start.\n{places.tail(child.log)}\n"
                "Fix the cause above, remove its data folder, or set REJOINDER_DATABASE_URL."
            )
            raise ServersError(message)
        time.sleep(0.02)


def _psql(binaries: Path, run: Path, sql: str) -> subprocess.CompletedProcess[bytes]:
    command = [str(binaries / "psql"), "-X", "-A", "-t", "-h", str(run), "-p", PORT]
    return subprocess.run(
        [*command, "-U", "postgres", "-d", "postgres", "-c", sql],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=children.clean_environment(),
        cwd="/",
        check=False,
    )
