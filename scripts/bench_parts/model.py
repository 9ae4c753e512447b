"""The model server from outside: started, asked what it saw, and shown not to be in the way."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, cast

from scripts.bench_parts.model_server import Call
from scripts.bench_parts.processes import cpu_of
from scripts.fleet import ROOT, TETHERED


@dataclass(frozen=True)
class Seen:
    """What it saw since the last time."""

    calls: list[Call]
    open: list[Call]
    most: int
    """Calls that were open at once, at most."""
    words: int
    late_p50: float
    """Seconds between the moment when a paced word was due and its write."""
    late_p99: float


@dataclass(frozen=True)
class Model:
    """A running model server."""

    url: str
    pid: int

    def look(self, *, keep: bool = False) -> Seen:
        """What it saw since the last look; `keep`: the next one sees it again."""
        path = "kept" if keep else "log"
        with urllib.request.urlopen(f"{self.url}/{path}") as answer:  # noqa: S310  # our own server
            told: dict[str, Any] = json.load(answer)
        told["calls"] = [Call(**call) for call in told["calls"]]
        told["open"] = [Call(**call) for call in told["open"]]
        return Seen(**told)

    def cpu(self) -> float:
        """CPU seconds that it has used."""
        return cpu_of({"model": [self.pid]})["model"]


@contextmanager
def model_server() -> Iterator[Model]:
    """The model server, ready; gone afterwards."""
    command = [sys.executable, "-m", "scripts.bench_parts.model_server"]
    process = subprocess.Popen(
        [sys.executable, "-S", TETHERED, str(os.getpid()), *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
    )
    try:
        yield Model(cast("IO[str]", process.stdout).readline().strip(), process.pid)
    finally:
        process.kill()
        process.wait()
        cast("IO[str]", process.stdout).close()


def capacity(model: Model, streams: int, seconds: float) -> dict[str, float]:
    """What the model server can do by itself, against a raw client in a process of its own."""
    told: dict[str, float] = {}
    for kind, size in (("calls", 16), ("words", streams)):
        command = [sys.executable, "-m", "scripts.bench_parts.raw_client", model.url, kind]
        model.look()
        before = model.cpu()
        asked = subprocess.run(
            [*command, str(size), str(seconds)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            check=True,
        )
        took = float(asked.stdout)
        used, seen = model.cpu() - before, model.look()
        if kind == "calls":
            told["calls/s"] = len(seen.calls) / took
            told["CPU us/call"] = used / len(seen.calls) * 1e6
        else:
            told["streams"] = seen.most
            told["words/s"] = seen.words / took
            told["CPU us/word"] = used / seen.words * 1e6
            told["CPU share at that"] = used / took
            told["late p99 ms"] = seen.late_p99 * 1000
    return told
