"""A fleet that grows and shrinks, for scenarios in which workers come and go."""

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import redis

from models.engine import make_engine
from rejoinder.client import Client, Turn
from scripts.fleet import Fleet, Member, environment
from tests.chats import World


@dataclass
class House:
    """A fleet that grows and shrinks; front-door calls have a worker of their own."""

    pool: str
    fleet: Fleet
    client: Client
    world: World
    notes: Path
    _numbers: Iterator[int]

    def worker(
        self, *options: str, concurrency: int = 8, env: Mapping[str, str] | None = None
    ) -> Member:
        """Start one more worker for steps; ready on return."""
        member = self.fleet.worker(
            f"steps-{next(self._numbers)}",
            pool=self.pool,
            concurrency=concurrency,
            queues=["rejoinder.steps"],
            env=env,
            options=options,
        )
        self.fleet.wait_until_ready(member)
        assert bool(psutil.Process(member.pid).children()) is (self.pool == "prefork")
        return member

    def start(self, *steps: Mapping[str, Any], words: str = "Go.") -> Turn:
        return self.client.create_chat(
            words,
            owner="joe",
            model="scripted:inline",
            options={"extra": {"script": {"turns": [list(steps)], "repeat": True}}},
        )

    def tool(self, name: str, seconds: float) -> dict[str, Any]:
        note = str(self.notes / f"{name}-{next(self._numbers)}")
        return {"text": "Look.", "calls": [_call(name, seconds, note)]}

    def row(self, turn: Turn) -> dict[str, Any]:
        return self.world.row(UUID(turn.chat_id))

    def roles(self, turn: Turn) -> list[str]:
        return [m["role"] for m in self.client.get_messages(turn.chat_id)["messages"]]


def _call(name: str, seconds: float, note: str) -> dict[str, Any]:
    return {"name": name, "arguments": {"seconds": seconds, "note": note}}


def noted(step: Mapping[str, Any]) -> list[str]:
    path = Path(step["calls"][0]["arguments"]["note"])
    return path.read_text(encoding="utf-8").split() if path.exists() else []


@contextmanager
def open_house(
    pool: str, database_url: str, redis_url: str, folder: Path, settings: Mapping[str, str]
) -> Iterator[House]:
    """A house with a worker for front-door calls, and none for steps yet."""
    with redis.Redis.from_url(redis_url) as connection:
        connection.flushdb()
    env = environment(database_url, redis_url, **settings)
    engine = make_engine(database_url)
    with Fleet(env, folder) as fleet, Client(broker_url=redis_url, timeout=30) as client:
        fleet.worker("control", queues=["rejoinder.control"], concurrency=8)
        fleet.wait_until_ready()
        yield House(pool, fleet, client, World(engine), folder, itertools.count(1))
    engine.dispose()
