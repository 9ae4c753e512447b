"""Chats brought into each phase of their work, on real workers, and what became of them."""

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg2
from celery import Celery
from sqlalchemy import make_url

from models import machine
from rejoinder.client import Client, Turn
from rejoinder.core.messages import CallKind, CallPlan
from tests.chats import World, call, said
from tests.waiting import wait_until

WORDS = " ".join(f"word{number}" for number in range(30))
PACE = 0.15
TOOL_SECONDS = 40.0
RETRY_SECONDS = 6.0


class Phase(StrEnum):
    """What a chat is doing when the news comes."""

    STREAMING = "streaming"
    SYNC_TOOL = "in a sync tool"
    ASYNC_TOOL = "in an async tool"
    COMMITTING = "committing"
    BETWEEN = "between steps"
    RETRY = "retry wait"
    PARKED = "parked"
    SLEEPING = "sleeping"


@dataclass
class Cast:
    """One chat in each phase."""

    client: Client
    world: World
    notes: Path
    turns: dict[Phase, Turn]
    lock: "RowLock"

    @property
    def app(self) -> Celery:
        return self.client.app

    def row(self, phase: Phase) -> dict[str, Any]:
        return self.world.row(UUID(self.turns[phase].chat_id))

    def status(self, phase: Phase) -> str:
        return str(self.row(phase)["status"])

    def noted(self, phase: Phase) -> list[str]:
        path = self.notes / phase.name
        return path.read_text(encoding="utf-8").split() if path.exists() else []

    def history(self, phase: Phase) -> list[tuple[str, str]]:
        """Roles and what was said; tool calls as their names, results as their content."""
        rows = self.world.read(
            "SELECT role, parts FROM rejoinder.messages WHERE chat_id = :c AND NOT deleted"
            " ORDER BY id",
            c=self.turns[phase].chat_id,
        )
        return [(row["role"], " | ".join(map(told, row["parts"]))) for row in rows]

    def turn_states(self, phase: Phase) -> list[str]:
        rows = self.world.read(
            "SELECT state FROM rejoinder.turns WHERE chat_id = :c ORDER BY id",
            c=self.turns[phase].chat_id,
        )
        return [row["state"] for row in rows]


def told(part: Mapping[str, Any]) -> str:
    """A part of a message, in short."""
    match part["type"]:
        case "text":
            return str(part["text"])
        case "tool_call":
            return f"→{part['name']}"
        case "tool_result":
            return f"{'✗' if part['is_error'] else '✓'}{part['content']}"
        case other:
            return str(other)


class RowLock:
    """Holds a chat's row, so that whoever commits has to wait."""

    def __init__(self, database_url: str) -> None:
        url = make_url(database_url).set(drivername="postgresql")
        self._connection = psycopg2.connect(url.render_as_string(hide_password=False))
        self._cursor = self._connection.cursor()

    def take(self, chat_id: str) -> None:
        self._cursor.execute("SELECT 1 FROM rejoinder.chats WHERE id = %s FOR UPDATE", [chat_id])

    def waiting(self) -> int:
        """How many wait for it, or behind somebody who does."""
        self._cursor.execute("SELECT pg_stat_clear_snapshot()")  # or nobody new is ever seen
        self._cursor.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        (count,) = self._cursor.fetchone() or (0,)
        return int(count)

    def release(self) -> None:
        with suppress(psycopg2.Error):
            self._connection.rollback()

    def close(self) -> None:
        self._connection.close()


def bring_about(cast: Cast, consume: Callable[..., None]) -> None:
    """Start a chat in each phase; all that have an owner are owned by the same worker."""

    def start(phase: Phase, *steps: Mapping[str, Any]) -> None:
        cast.turns[phase] = cast.client.create_chat(
            f"Go, {phase}.",
            owner="joe",
            model="scripted:inline",
            options={"extra": {"script": {"turns": [list(steps), [{"text": "Again."}]]}}},
        )

    def tool(name: str, phase: Phase) -> dict[str, Any]:
        arguments = {"seconds": TOOL_SECONDS, "note": str(cast.notes / phase.name)}
        return {"text": "Look.", "calls": [{"name": name, "arguments": arguments}]}

    for phase, kind in ((Phase.PARKED, CallKind.CLIENT), (Phase.SLEEPING, CallKind.EXTERNAL)):
        start(phase, {"text": "unused"}, {"text": "Done."})
        _park(cast, phase, kind)
    consume(begin=True)
    overloaded = {"kind": "overloaded", "times": 1, "retry_after": RETRY_SECONDS}
    start(Phase.SYNC_TOOL, tool("hold", Phase.SYNC_TOOL), {"text": "Done."})
    start(Phase.ASYNC_TOOL, tool("hold_async", Phase.ASYNC_TOOL), {"text": "Done."})
    wait_until(lambda: cast.noted(Phase.SYNC_TOOL), 30)
    wait_until(lambda: cast.noted(Phase.ASYNC_TOOL), 30)
    # From here on the clocks run, of the retry, of the words and of those who wait for the lock.
    start(Phase.RETRY, {"fail": [overloaded], "text": "Retried."})
    start(Phase.COMMITTING, {"text": "Committed.", "delay": 0.8})
    start(Phase.STREAMING, {"text": WORDS, "pace": PACE})
    wait_until(lambda: cast.status(Phase.COMMITTING) == "running", 30)
    cast.lock.take(cast.turns[Phase.COMMITTING].chat_id)
    wait_until(lambda: cast.row(Phase.RETRY)["run_after"] is not None, 30)
    _wait_for_words(cast)
    wait_until(cast.lock.waiting, 30)
    consume(begin=False)
    start(Phase.BETWEEN, {"text": "At last."})


def _wait_for_words(cast: Cast) -> None:
    for event in cast.client.stream(cast.turns[Phase.STREAMING].chat_id):
        if event is not None and event.kind == "part":
            return


def _park(cast: Cast, phase: Phase, kind: CallKind) -> None:
    world, chat_id = cast.world, UUID(cast.turns[phase].chat_id)
    wanted = call("call-1")
    fence = world.claim(chat_id)
    plans = {"call-1": CallPlan(kind, external_id="task-1")}
    recorded = world.do(machine.record, fence, said("Look.", wanted), plans=plans)
    park = machine.require_action if kind is CallKind.CLIENT else machine.sleep
    world.do(park, recorded.fence, deadline_seconds=600)


class KeepAlive:
    """The heart of the test's own worker row, which parks chats."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        from models import claims  # noqa: PLC0415

        while not self._done.wait(0.5):
            claims.heartbeat(self._world.engine, self._world.worker_id)

    def close(self) -> None:
        self._done.set()
        self._thread.join(5)
