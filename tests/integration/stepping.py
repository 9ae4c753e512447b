"""One step of one chat in this process: real rows, a real stream, a scripted model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import redis
from celery.app.task import Context
from uuid_utils.compat import uuid7

from models import claims
from rejoinder.core.settings import Settings
from rejoinder.streams import backwards, key_of
from rejoinder.tools import Registry
from tasks import step, stopping
from tasks.runtime import Runtime
from tests.chats import World

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from uuid import UUID

    import pytest

    from rejoinder.core.effects import Cause, Effects
    from rejoinder.streams import StreamEvent
    from tests.conftest import RedisSpace


class Stepping:
    """A process, and a chat that it takes from step to step."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.world = World(runtime.engine)
        self.effects: list[Effects] = []
        """What was to be published."""
        self.chat_id: UUID

    def start(self, *steps: Mapping[str, Any], tools: Iterable[Any] = (), **options: Any) -> None:
        """Make the chat: what its model says, step by step, and the tools there are."""
        script = {"turns": [list(steps)]}
        self.chat_id = self.world.new(
            model="scripted:inline", options={"extra": {"script": script}, **options}
        ).id
        self.runtime.tools = Registry(tools)

    def step(self) -> None:
        step.take(Context(id=str(uuid7())), self.runtime, self.chat_id)

    def cancel(self, cause: Cause) -> None:
        self.runtime.cancel(self.row["lease_id"], cause)

    @property
    def row(self) -> dict[str, Any]:
        return self.world.row(self.chat_id)

    @property
    def status(self) -> str:
        return str(self.row["status"])

    def history(self) -> list[tuple[str, list[Any]]]:
        """Who said what: texts, names of calls, contents of results."""
        rows = self.world.read(
            "SELECT role, parts FROM rejoinder.messages WHERE NOT deleted ORDER BY id"
        )
        return [(row["role"], [_short(part) for part in row["parts"]]) for row in rows]

    def calls(self) -> dict[str, tuple[str, str | None]]:
        """By name, the state of each call, and what came of it."""
        rows = self.world.read("SELECT name, state, result FROM rejoinder.tool_calls ORDER BY id")
        return {r["name"]: (r["state"], r["result"] and r["result"]["content"]) for r in rows}

    def results(self) -> list[Any]:
        """What stands in history of what tools said."""
        return [part for role, parts in self.history() if role == "tool" for part in parts]

    def told(self, kind: str) -> list[StreamEvent]:
        """What readers have been told so far, of one kind, the oldest first."""
        self.runtime.events.flush()
        name = key_of(self.runtime.settings.redis_prefix, self.chat_id)
        with redis.Redis.from_url(self.runtime.settings.redis_url) as client:
            return [event for event in backwards(client, name) if event.kind == kind][::-1]


def _short(part: Mapping[str, Any]) -> Any:
    match part["type"]:
        case "text":
            return part["text"]
        case "tool_call":
            return f"→{part['name']}"
        case _:
            return part.get("content")


def stepping(
    database_url: str, space: RedisSpace, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> Iterator[Stepping]:
    """A process of its own; the body of a fixture."""
    runtime = Runtime(
        Settings(
            database_url=database_url,
            redis_url=space.url,
            redis_prefix=space.prefix,
            title_model="off",
            **settings,
        )
    )
    claims.register_worker(runtime.engine, runtime.worker_id, "this process")
    monkeypatch.setattr(stopping, "this", stopping.Stopping())
    made = Stepping(runtime)
    monkeypatch.setattr("tasks.held.publish", lambda _, done, **_options: made.effects.append(done))
    yield made
    runtime.close()
