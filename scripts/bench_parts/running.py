"""Contenders at work: started, given tasks, asked for their processes, and ended.

All talk to the same servers and the same model. `run` gives all tasks at once and returns when the
last one is done; when each model call came and went, the model server knows.
"""

import json
import os
import subprocess
import sys
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Self, cast

import psutil
import psycopg2
import redis
from sqlalchemy import make_url

from rejoinder import embedded
from rejoinder.client import Client
from scripts.bench_parts.contenders import naive
from scripts.bench_parts.task import MODEL, Task
from scripts.fleet import ROOT, TETHERED, Fleet, environment

PATIENCE = 300.0


@dataclass(frozen=True)
class Place:
    """Where contenders meet: servers of this run, the model, and a folder for logs."""

    servers: embedded.Servers
    model_url: str
    logs: Path

    @property
    def env(self) -> dict[str, str]:
        """What every contender's processes get."""
        url = make_url(self.servers.database_url).set(drivername="postgresql")
        model = {"ANTHROPIC_BASE_URL": self.model_url, "ANTHROPIC_API_KEY": "bench"}
        settings = {
            "BENCH_DATABASE_DSN": url.render_as_string(hide_password=False),
            "BENCH_REDIS_URL": self.servers.redis_url,
            "REJOINDER_MODEL": f"anthropic:{MODEL}",
            "REJOINDER_TOOLS": "scripts.bench_parts.tools",
            "REJOINDER_TITLE_MODEL": "off",
        }
        return environment(self.servers.database_url, self.servers.redis_url, **model, **settings)


class Contender(AbstractContextManager["Contender"]):
    """Somebody who can run tasks."""

    name: str

    @abstractmethod
    def run(self, tasks: Sequence[Task]) -> None:
        """Run all of them at once, to the end."""

    @abstractmethod
    def processes(self) -> Mapping[str, Sequence[int]]:
        """Its processes, by what they are."""

    def gaps(self) -> list[float] | None:
        """The gaps that it measured itself, if it asks no model."""
        return None


class Program(Contender):
    """A contender that is a program of its own."""

    def __init__(self, place: Place, name: str) -> None:
        """Start it."""
        self.name = name
        command = [sys.executable, "-m", f"scripts.bench_parts.contenders.{name}"]
        self._process = subprocess.Popen(
            [sys.executable, "-S", TETHERED, str(os.getpid()), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=place.env,
            text=True,
        )
        self._expect("ready")

    def run(self, tasks: Sequence[Task]) -> None:
        """Give it a line of tasks, and wait for its word."""
        given = cast("IO[str]", self._process.stdin)
        given.write(json.dumps([asdict(task) for task in tasks]) + "\n")
        given.flush()
        self._expect("done")

    def processes(self) -> Mapping[str, Sequence[int]]:
        """The one."""
        return {"program": [self._process.pid]}

    def __exit__(self, *_: object) -> None:
        """End it."""
        cast("IO[str]", self._process.stdin).close()
        self._process.wait(30)
        cast("IO[str]", self._process.stdout).close()

    def _expect(self, word: str) -> None:
        said = cast("IO[str]", self._process.stdout).readline().strip()
        if said != word:
            raise RuntimeError(f"{self.name} said {said!r} instead of {word!r}")


class OnCelery(Contender):
    """A contender with a worker."""

    def __init__(self, place: Place, name: str) -> None:
        """Prepare a fleet of its own."""
        self.name = name
        self.place = place
        self.fleet = Fleet(place.env, place.logs)
        self.redis = redis.Redis.from_url(place.servers.redis_url)

    def __enter__(self) -> Self:
        """Start its processes."""
        self.fleet.__enter__()
        self.start()
        self.fleet.wait_until_ready()
        return self

    def __exit__(self, *args: object) -> None:
        """End them."""
        self.fleet.__exit__(*args)
        self.redis.close()

    @abstractmethod
    def start(self) -> None:
        """Start workers."""

    def processes(self) -> Mapping[str, Sequence[int]]:
        """Workers and their children, by name."""
        found = {}
        for member in self.fleet.members:
            children = psutil.Process(member.pid).children(recursive=True)
            found[member.name] = [member.pid, *(child.pid for child in children)]
        return found


class Naive(OnCelery):
    """`contenders/naive.py`, or only its tasks that do nothing."""

    def __init__(self, place: Place, name: str = "naive", *, nothing: bool = False) -> None:
        """With model calls, or without."""
        super().__init__(place, name)
        self._nothing = nothing

    def start(self) -> None:
        """One worker on threads: it waits for the model most of the time."""
        naive.prepare(self.place.env["BENCH_DATABASE_DSN"])
        module = "scripts.bench_parts.contenders.naive"
        options = ["--pool=threads", "--concurrency=100", "--loglevel=INFO", "-Q", "naive"]
        arguments = ["worker", "-n", f"{self.name}@%h", *options]
        self.fleet.start(self.name, arguments, ready_when="ready.", app=module)

    def run(self, tasks: Sequence[Task]) -> None:
        """Store the first messages, send the first tasks, and wait for the last."""
        self.redis.delete("naive:done")
        connection = psycopg2.connect(self.place.env["BENCH_DATABASE_DSN"])
        with connection, connection.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO naive_messages (chat, role, content) VALUES (%s, 'user', %s)",
                [(task.id, json.dumps(task.text)) for task in tasks],
            )
        connection.close()
        naive.app.conf.update(
            broker_url=self.place.servers.redis_url, result_backend=self.place.servers.redis_url
        )
        for task in tasks:
            if self._nothing:
                naive.nothing.delay(task.id, task.calls - 1, time.time())
            else:
                naive.step.delay(task.id)
        for _ in tasks:
            if self.redis.blpop(["naive:done"], timeout=PATIENCE) is None:
                raise RuntimeError(f"{self.name} did not finish in time")

    def gaps(self) -> list[float] | None:
        """Between tasks, for those that do nothing."""
        if not self._nothing:
            return None
        found: Any = self.redis.lrange("naive:gaps", 0, -1)
        self.redis.delete("naive:gaps")
        return [float(gap) for gap in found]


class Rejoinder(OnCelery):
    """Ourselves: a worker for steps, one for the front door."""

    def __init__(self, place: Place, pool: str, *, workers: int = 1) -> None:
        """On this pool."""
        super().__init__(
            place, f"rejoinder {pool}" if workers == 1 else f"rejoinder {pool} x{workers}"
        )
        self._pool = pool
        self._workers = workers
        self.client = Client(broker_url=place.servers.redis_url, timeout=60)

    def start(self) -> None:
        """As `make up` does, without beat and Flower."""
        self.fleet.worker("control", queues=["rejoinder.control"], concurrency=8)
        for number in range(self._workers):
            self.fleet.worker(
                f"steps{number}",
                pool=self._pool,
                concurrency=400 if self._pool == "threads" else 8,
                queues=["rejoinder.steps"],
            )

    def run(self, tasks: Sequence[Task]) -> None:
        """Create the chats, and wait for the answers."""
        turns = [self.client.create_chat(task.text, owner="bench") for task in tasks]
        for turn in turns:
            turn.get(timeout=PATIENCE)

    def __exit__(self, *args: object) -> None:
        """Also close the client."""
        self.client.close()
        super().__exit__(*args)
