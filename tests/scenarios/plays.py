"""A play: workers of its own on a database of its own, where somebody is going to die.

Workers are started with quick timings, and without Celery's second of looking for neighbours. Who
owns a chat is read from the rows, so that a test kills the right process. Sweeps are sent by a
thread (`sweeping`), not by beat, unless a test is about beat.
"""

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import redis
from celery import Celery
from kombu.exceptions import OperationalError

from models.engine import make_engine
from rejoinder.client import Client, Turn
from rejoinder.embedded import Servers
from rejoinder.streams import StreamEvent, backwards, key_of
from scripts.fleet import Fleet, Member, environment
from tests.chats import World
from tests.scenarios.conftest import QUICK
from tests.scenarios.phases import told
from tests.waiting import wait_until

STEPS, CONTROL = "rejoinder.steps", "rejoinder.control"
LONG = 45.0
"""How long the end of a turn may take, at most."""
Begin = Callable[..., AbstractContextManager["Play"]]
"""Begins a play, given settings that differ."""
WORDS = " ".join(f"word{number}" for number in range(20))


@dataclass
class Play:
    """Everybody who takes part."""

    servers: Servers
    database_url: str
    folder: Path
    fleet: Fleet
    client: Client
    world: World
    redis: "redis.Redis"

    def worker(
        self,
        name: str,
        *,
        pool: str = "threads",
        concurrency: int = 4,
        queues: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> Member:
        """Start a worker; `ready` waits for it."""
        return self.fleet.worker(
            name,
            pool=pool,
            concurrency=concurrency,
            queues=queues,
            env=env,
            options=["--without-mingle", "--without-gossip", *options],
        )

    def ready(self) -> None:
        """Wait until everybody is."""
        self.fleet.wait_until_ready(*(m for m in self.fleet.members if not m.stopping))

    def takes_steps(self, member: Member) -> None:
        """Let a worker that has not done so take steps from now on."""
        name = f"{member.name}@{socket.gethostname()}"
        self.client.app.control.add_consumer(
            STEPS, destination=[name], reply=True, timeout=10, limit=1
        )

    def start(self, *steps: Mapping[str, Any], later: Sequence[Mapping[str, Any]] = ()) -> Turn:
        """Create a chat that follows this script; `later` are its next turns, of a step each."""
        return self.client.create_chat(
            "Go.", owner="joe", model="scripted:inline", options=script(*steps, later=later)
        )

    def row(self, turn: Turn) -> dict[str, Any]:
        return self.world.row(UUID(turn.chat_id))

    def status(self, turn: Turn) -> str:
        return str(self.row(turn)["status"])

    def is_at_rest(self, *turns: Turn) -> bool:
        return all(self.status(turn) in ("waiting", "error") for turn in turns)

    def rest(self, *turns: Turn, seconds: float = LONG) -> None:
        """Wait until these chats have come to rest."""
        wait_until(lambda: self.is_at_rest(*turns), seconds, "rest")

    def history(self, turn: Turn) -> list[tuple[str, str]]:
        """Roles and what was said, see `told`."""
        rows = self.world.read(
            "SELECT role, parts FROM rejoinder.messages WHERE chat_id = :c AND NOT deleted"
            " ORDER BY id",
            c=turn.chat_id,
        )
        return [(row["role"], " | ".join(map(told, row["parts"]))) for row in rows]

    def answers(self, turn: Turn) -> list[str]:
        """Everything that the assistant said."""
        return [words for role, words in self.history(turn) if role == "assistant"]

    def turn_state(self, turn: Turn) -> str:
        (row,) = self.world.read("SELECT state FROM rejoinder.turns WHERE id = :t", t=turn.turn_id)
        return str(row["state"])

    def owner(self, turn: Turn) -> int:
        """The process that works on it."""
        (row,) = self.world.read(
            "SELECT w.name FROM rejoinder.workers w JOIN rejoinder.chats c ON c.worker_id = w.id"
            " WHERE c.id = :c",
            c=turn.chat_id,
        )
        return int(row["name"].rpartition(":")[2])

    def note(self, name: str) -> str:
        """Where a tool may note something."""
        return str(self.folder / f"note-{name}")

    def noted(self, name: str) -> list[str]:
        path = Path(self.note(name))
        return path.read_text(encoding="utf-8").split() if path.exists() else []

    def using(self, tool: str, note: str, seconds: float = 60.0) -> dict[str, Any]:
        """A step that uses a tool which makes notes."""
        arguments = {"seconds": seconds, "note": self.note(note)}
        return {"text": "Look.", "calls": [{"name": tool, "arguments": arguments}]}

    def events(self, turn: Turn) -> list[StreamEvent]:
        """What readers of the chat have been told."""
        return [*backwards(self.redis, key_of("rejoinder:", turn.chat_id))][::-1]

    def live(self, turn: Turn) -> str:
        """The text that readers of the chat have seen."""
        parts = [event.data for event in self.events(turn) if event.kind == "part"]
        return "".join(part["text"] for part in parts if part["of"] == "text")

    def model_calls(self, turn: Turn) -> int:
        """How often the model began to say something."""
        parts = [event.data for event in self.events(turn) if event.kind == "part"]
        return sum(part["seq"] == part["n"] for part in parts)

    def log(self) -> str:
        """Everything that was logged."""
        return "\n".join(member.text() for member in self.fleet.members)


def script(
    *steps: Mapping[str, Any], later: Sequence[Mapping[str, Any]] = ()
) -> dict[str, dict[str, Any]]:
    """The options of a chat that follows this script."""
    return {"extra": {"script": {"turns": [list(steps), *[[step] for step in later]]}}}


@contextmanager
def play(servers: Servers, database_url: str, folder: Path, **settings: str) -> Iterator[Play]:
    """Begin with nobody."""
    engine = make_engine(database_url)
    broker = settings.get("REJOINDER_BROKER_URL", servers.redis_url)
    env = environment(database_url, servers.redis_url, **{**QUICK, **settings})
    with redis.Redis.from_url(servers.redis_url) as connection:
        connection.flushall()
        with (
            Fleet(env, folder) as fleet,
            Client(broker_url=broker, redis_url=servers.redis_url, timeout=30) as client,
        ):
            try:
                yield Play(servers, database_url, folder, fleet, client, World(engine), connection)
            finally:
                _end_at_once(fleet)
                client.app.close()
    engine.dispose()


def _end_at_once(fleet: Fleet) -> None:
    """Kill whoever is left, children too: how workers leave is another test's matter."""
    for member in fleet.members:
        member.stopping = True
        with suppress(ProcessLookupError):
            os.killpg(member.pid, signal.SIGKILL)
        member.wait()


@contextmanager
def sweeping(servers: Servers, every: float = 1.0) -> Iterator[None]:
    """Send a sweep each second meanwhile."""
    done = threading.Event()

    def send() -> None:
        with Celery("sweeper", broker=servers.redis_url) as app:
            while not done.wait(every):
                with suppress(OperationalError, redis.RedisError):
                    app.send_task("rejoinder.sweep", queue=CONTROL, ignore_result=True, retry=False)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(10)
