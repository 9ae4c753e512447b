"""Other people's durable execution beside us in `make bench`: who there is, how it is started.

Peers live in an environment of their own (`make peers` makes it from requirements-peers.lock): what
they depend on contradicts what we depend on. So nothing here imports them. Their programs are
`contenders/*_peer.py`; a module named `dbos` would hide what it is to import.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from scripts.bench_parts.place import Place
from scripts.bench_parts.running import Program
from scripts.fleet import ROOT

PYTHON = ROOT / ".venv-peers" / "bin" / "python"
PEERS = {
    "langgraph": ("langgraph_peer",),
    "langgraph-sync": ("langgraph_peer", "sync"),
    "dbos": ("dbos_peer",),
}
"""A peer's program, and its arguments."""
HOW = f"not installed: {', '.join(PEERS)}; `make peers` installs them"


def installed(python: Path = PYTHON) -> dict[str, Callable[[Place], Program]]:
    """The peers that can be started here: all or none."""
    return {name: partial(_start, python, name) for name in PEERS} if python.exists() else {}


def _start(python: Path, name: str, place: Place) -> Program:
    module, *arguments = PEERS[name]
    command = (str(python), "-m", f"scripts.bench_parts.contenders.{module}", *arguments)
    return Program(place, name, *command)
