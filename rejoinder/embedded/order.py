"""What an owner orders from its guardian, as JSON: servers on its command line, restarts by stdin.

It never carries a secret, since a command line is public on most systems.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Server: TypeAlias = Literal["postgres", "valkey"]


@dataclass(frozen=True)
class Order:
    """Which servers to start, for whom, and where."""

    owner: int  # process id; when it is gone, so are the servers
    run: str  # folder that ends with the servers: sockets, copied binaries
    home: str  # folder of data and logs; the run folder itself if nothing is to be kept
    kept: bool
    durable: bool
    postgres: bool
    valkey: bool


@dataclass(frozen=True)
class Restart:
    """End a server, wait, and start it again where it was."""

    server: Server
    down_seconds: float
    kill: bool
