"""Contenders at work: started, given tasks, asked for their processes, and ended.

All talk to the same servers and the same model, each in a place of its own. `run` sends all tasks,
one after the other, as so many people would, and returns when the last one is done; when each model
call came and went, the model server knows.
"""

import json
import os
import subprocess
import sys
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import asdict
from typing import IO, Any, Self, cast

import psycopg2
import redis
from celery import Celery

from rejoinder.client import Client
from scripts.bench_parts.contenders import naive
from scripts.bench_parts.place import Place as Place
from scripts.bench_parts.place import own_folder
from scripts.bench_parts.task import Task
from scripts.fleet import ROOT, TETHERED, Fleet

CONTENDERS = "scripts.bench_parts.contenders"
PATIENCE = 300.0
PATIENCE_AT_END = 5.0
THREADS = 100
"""Of a worker on threads, Rejoinder's default; the naive one has as many."""


class Contender(AbstractContextManager["Contender"]):
    """Somebody who can run tasks."""

    name: str
    place: Place

    @abstractmethod
    def run(self, tasks: Sequence[Task]) -> None:
        """Run all of them at once, to the end."""

    @abstractmethod
    def processes(self) -> Mapping[str, Sequence[int]]:
        """Its processes, by what they are; each stands for its children, too."""

    def gaps(self) -> list[float] | None:
        """The gaps that it measured itself, if it asks no model."""
        return None

    def launch(self) -> None:
        """Begin to start, if that takes time that others can use."""


def together(stack: ExitStack, team: Sequence[Contender]) -> None:
    """Start all of them at the same time, for as long as the stack lasts."""
    for each in team:
        stack.push(each)
        each.launch()
    for each in team:
        each.__enter__()


class Program(Contender):
    """A contender that is a program of its own."""

    def __init__(
        self, place: Place, name: str, *command: str, title: str = "", package: str = CONTENDERS
    ) -> None:
        """Start it: a module of its name, unless the command is another."""
        self.name = title or name
        self.place = place
        self.said: Any = None
        """What it said about its last tasks, beyond that they are done."""
        command = command or (sys.executable, "-m", f"{package}.{name}")
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
        self.tell([asdict(task) for task in tasks])
        self.hear()

    def tell(self, what: object) -> None:
        """Give it a line; `hear` its word later."""
        given = cast("IO[str]", self._process.stdin)
        given.write(json.dumps(what) + "\n")
        given.flush()

    def hear(self) -> Any:
        """Wait for its word, and what it says with it."""
        self._expect("done")
        return self.said

    def processes(self) -> Mapping[str, Sequence[int]]:
        """The one."""
        return {"worker": [self._process.pid]}

    def __exit__(self, *_: object) -> None:
        """End it: it ends with its input, or is made to."""
        with suppress(BrokenPipeError):
            cast("IO[str]", self._process.stdin).close()
        try:
            self._process.wait(PATIENCE_AT_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        cast("IO[str]", self._process.stdout).close()

    def _expect(self, word: str) -> None:
        said, _, more = cast("IO[str]", self._process.stdout).readline().strip().partition(" ")
        if said != word:
            raise RuntimeError(f"{self.name} said {said!r} instead of {word!r}")
        self.said = json.loads(more) if more else None


class OnCelery(Contender):
    """A contender with a worker."""

    def __init__(self, place: Place, name: str) -> None:
        """Prepare a fleet of its own."""
        self.name = name
        self.place = place
        self.fleet = self.make_fleet()
        self.redis = redis.Redis.from_url(place.redis_url, socket_timeout=None)
        self._launched = False

    def make_fleet(self) -> Fleet:
        """Who starts its processes."""
        return Fleet(self.place.env, own_folder(self.place.logs, self.name))

    def launch(self) -> None:
        """Start its processes."""
        if not self._launched:
            self._launched = True
            self.start()

    def __enter__(self) -> Self:
        """Have its processes ready."""
        self.fleet.__enter__()
        self.launch()
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
        """Workers of steps, and others by their names."""
        found: dict[str, list[int]] = {}
        for member in self.fleet.members:
            name = "worker" if member.name.startswith("steps") else member.name
            found.setdefault(name, []).append(member.pid)
        return found


class Naive(OnCelery):
    """`contenders/naive.py`, or only its tasks that do nothing."""

    def __init__(self, place: Place, name: str = "naive", *, nothing: bool = False) -> None:
        """With model calls, or without."""
        super().__init__(place, name)
        self._nothing = nothing
        self._app = Celery("sender", broker=place.redis_url)
        self._app.conf.task_default_queue = "naive"
        naive.prepare(place.dsn)
        self._connection = psycopg2.connect(place.dsn)

    def start(self) -> None:
        """One worker on threads: it waits for the model most of the time."""
        module = "scripts.bench_parts.contenders.naive"
        options = ["--pool=threads", f"--concurrency={THREADS}", "--loglevel=INFO"]
        arguments = ["worker", "-n", f"{self.name}@%h", *options]
        self.fleet.start("steps", arguments, ready_when=" ready.", app=module)

    def run(self, tasks: Sequence[Task]) -> None:
        """Store each first message, send its task, and wait for the last."""
        for task in tasks:
            self.send(task)
        for _ in tasks:
            if self.redis.blpop(["naive:done"], timeout=PATIENCE) is None:
                raise RuntimeError(f"{self.name} did not finish in time")

    def send(self, task: Task, step: str = "naive.step") -> None:
        """Do what a web page of theirs does."""
        if self._nothing:
            self._app.send_task("naive.nothing", [task.id, task.calls - 1, time.time()])
            return
        with self._connection, self._connection.cursor() as cursor:
            naive.say(cursor, task.id, "user", task.text)
        self._app.send_task(step, [task.id])

    def gaps(self) -> list[float] | None:
        """Between tasks, for those that do nothing."""
        if not self._nothing:
            return None
        found: Any = self.redis.lrange("naive:gaps", 0, -1)
        self.redis.delete("naive:gaps")
        return [float(gap) for gap in found]

    def __exit__(self, *args: object) -> None:
        """Also close connections."""
        self._connection.close()
        self._app.close()
        super().__exit__(*args)


class Rejoinder(OnCelery):
    """Ourselves: a worker for steps, one for the front door."""

    def __init__(
        self,
        place: Place,
        pool: str,
        *,
        workers: int = 1,
        slots: int | None = None,
        all_in_one: bool = False,
    ) -> None:
        """On this pool; `all_in_one`: the worker for steps is the front door, too.

        Which code it runs, and with which settings, is its place's variant.
        """
        several = ", one worker" if all_in_one else f" x{workers}" if workers > 1 else ""
        super().__init__(place, f"rejoinder {pool}{several}{place.variant.label}")
        self._pool = pool
        self._all_in_one = all_in_one or place.small
        self._workers = workers
        self._slots = slots or (THREADS if pool == "threads" else 8)
        self.client = Client(broker_url=place.redis_url, timeout=60)

    def make_fleet(self) -> Fleet:
        """Processes of its own commit."""
        place, variant = self.place, self.place.variant
        logs = own_folder(place.logs, self.name)
        env = {**place.env, **variant.env}
        return Fleet(env, logs, root=variant.root, python=variant.python)

    def start(self) -> None:
        """As `make up` does, without beat and Flower; in a small place one does it all."""
        queues = ["rejoinder.steps"]
        if self._all_in_one:
            queues.append("rejoinder.control")
        else:
            self.fleet.worker("control", queues=["rejoinder.control"], concurrency=8)
        for number in range(self._workers):
            self.fleet.worker(
                f"steps{number}", pool=self._pool, concurrency=self._slots, queues=queues
            )

    def run(self, tasks: Sequence[Task]) -> None:
        """Create the chats, and wait for the answers."""
        for made in self.create(tasks):
            self.client.result(made["turn_id"]).get(timeout=PATIENCE)

    def create(self, tasks: Sequence[Task]) -> list[dict[str, Any]]:
        """Create chats as many apps would: nobody waits for the chat of another."""
        sent = [
            self.client.app.send_task(
                "rejoinder.create_chat",
                kwargs={"content": task.text, "owner": "bench"},
                queue="rejoinder.control",
            )
            for task in tasks
        ]
        return [each.get(timeout=PATIENCE) for each in sent]

    def __exit__(self, *args: object) -> None:
        """Also close the client."""
        self.client.close()
        super().__exit__(*args)
