"""All on one machine: embedded servers, migrated, and a fleet; for `make up` and `make chat`.

One at a time per checkout: it keeps its data in `.rejoinder/`, under a lock. While it runs,
`.rejoinder/env` tells other shells and apps where it is; the file is gone when it has ended.
"""

import fcntl
import os
import shlex
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis

from models.migrate import upgrade
from rejoinder import embedded
from scripts.fleet import ROOT, Fleet, Signals, environment

HOME = ROOT / ".rejoinder"
FLOWER_PORT = 5555
# What is ours to choose on one person's machine, unless the person chose.
SETTINGS: Mapping[str, str] = {
    "REJOINDER_TOOLS": "rejoinder.tools.examples",
    "REJOINDER_DRAIN_SECONDS": "2",  # after Ctrl-C nobody wants to wait
}
SHOWN = ("REJOINDER_DATABASE_URL", "REJOINDER_REDIS_URL", "REJOINDER_BROKER_URL", *SETTINGS)


class AlreadyRunningError(RuntimeError):
    """Another one has the lock; the text says which, and what to do."""


@dataclass(frozen=True)
class Stack:
    """What runs."""

    servers: embedded.Servers
    fleet: Fleet
    flower_url: str | None


@contextmanager
def stack(home: Path = HOME, *, flower: bool, control: bool, signals: Signals) -> Iterator[Stack]:
    """Servers and fleet, ready on entry and gone after exit; `env` is there in between.

    `control` adds a small worker for front-door calls alone, so that they never wait for a step.
    """
    with _alone(home), embedded.servers(home) as servers:
        upgrade(servers.database_url)
        chosen = {name: os.environ.get(name) or value for name, value in SETTINGS.items()}
        env = environment(servers.database_url, servers.redis_url, **chosen)
        with ExitStack() as held, Fleet(env, home / "logs", signals=signals) as fleet:
            fleet.worker("steps")
            if control:
                fleet.worker("control", queues=["rejoinder.control"], concurrency=4)
            fleet.wait_until_ready()
            fleet.beat(home / "beat-schedule")
            port = held.enter_context(free_port()) if flower else 0
            if flower:  # last, because it asks the workers who they are
                fleet.flower(port)
            fleet.wait_until_ready()
            with _env_file(home / "env", env):
                yield Stack(servers, fleet, f"http://127.0.0.1:{port}" if flower else None)


def running(home: Path = HOME) -> dict[str, str] | None:
    """The environment of a stack that runs and answers, as its `env` file says."""
    try:
        lines = (home / "env").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    found = {}
    for line in lines:
        name, equals, value = line.removeprefix("export ").partition("=")
        if equals and name in SHOWN:
            found[name] = "".join(shlex.split(value))
    try:
        with redis.Redis.from_url(
            found.get("REJOINDER_REDIS_URL", ""), socket_connect_timeout=1, socket_timeout=1
        ) as server:
            server.ping()
    except (redis.RedisError, ValueError):
        return None
    return found


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    home.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(home / "stack.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            who = os.pread(descriptor, 32, 0).decode().strip() or "unknown"
            raise AlreadyRunningError(
                f"It is already running here, as process {who}. Use it from this shell with\n"
                f"    . {os.path.relpath(home / 'env')}\n"
                f"or stop it first: Ctrl-C in its terminal, or kill {who}"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _env_file(path: Path, env: Mapping[str, str]) -> Iterator[None]:
    lines = [f"# Made by process {os.getpid()}, which removes it at its end. To be sourced."]
    lines += [f"export {name}={shlex.quote(env[name])}" for name in SHOWN if env.get(name)]
    lines += [
        f"export PYTHONPATH={shlex.quote(str(ROOT))}${{PYTHONPATH:+:$PYTHONPATH}}",
        f"export PATH={shlex.quote(str(ROOT / '.venv' / 'bin'))}:$PATH",
    ]
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)  # it has passwords
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


@contextmanager
def free_port() -> Iterator[int]:
    """A port for Flower, and its UDP twin, which is held: whoever looks next sees that it is taken.

    Flower binds its port seconds later; two of these would agree on the same one until then.
    """
    for port in range(FLOWER_PORT, FLOWER_PORT + 100):
        with socket.socket(type=socket.SOCK_DGRAM) as twin, socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                twin.bind(("127.0.0.1", port))
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            probe.close()
            yield port
            return
    raise RuntimeError(f"no port from {FLOWER_PORT} on is free for Flower")
