"""A RabbitMQ of a test's own, on free ports, if `rabbitmq-server` is installed on this machine."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import wait_until

HOMES = Path("/usr/lib/rabbitmq/lib")
"""Debian: the programs on PATH are wrappers that change the user."""
START_SECONDS = 60.0


def program(name: str) -> str | None:
    """Where it is, if it is there."""
    found = sorted(str(path) for path in HOMES.glob(f"*/sbin/{name}"))
    return found[-1] if found else shutil.which(name)


@dataclass(frozen=True)
class Rabbit:
    """A running one."""

    url: str
    env: dict[str, str]

    def close_connections(self) -> None:
        """Cut everybody off: what they have not acknowledged is delivered again."""
        command = [str(program("rabbitmqctl")), "close_all_connections", "test"]
        subprocess.run(command, env=self.env, check=True, capture_output=True, timeout=60)


@contextmanager
def rabbit(folder: Path) -> Iterator[Rabbit]:
    """Start one, and end it with the `with`."""
    node, distribution, names = (_free_port() for _ in range(3))
    env = {
        **os.environ,
        "HOME": str(folder),
        "ERL_EPMD_PORT": str(names),
        "RABBITMQ_NODENAME": f"test{node}@localhost",
        "RABBITMQ_NODE_PORT": str(node),
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_DIST_PORT": str(distribution),
        "RABBITMQ_MNESIA_BASE": str(folder),
        "RABBITMQ_LOG_BASE": str(folder),
        "RABBITMQ_CONFIG_FILE": str(folder / "none"),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
    }
    with ExitStack() as ending:
        for command in (["epmd", "-port", str(names)], [str(program("rabbitmq-server"))]):
            log = ending.enter_context((folder / f"{Path(command[0]).name}.log").open("wb"))
            started = subprocess.Popen(command, env=env, stdout=log, stderr=log)
            ending.callback(_end, started)
        wait_until(lambda: _answers(node), START_SECONDS, "RabbitMQ")
        yield Rabbit(f"amqp://guest:guest@127.0.0.1:{node}//", env)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
        connection.settimeout(5)
        connection.sendall(b"AMQP\x00\x00\x09\x01")
        return bool(connection.recv(1))
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
