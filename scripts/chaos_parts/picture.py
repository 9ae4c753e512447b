"""What stands in the database at the end, read from outside with plain SQL.

It takes nothing from the application: a picture painted by the suspect is no evidence.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine, text

from scripts.chaos_parts.plan import Plan, found_in

_CHATS = """
SELECT id::text, parent_id::text, root_id::text, status, turn_id::text, lease_id::text,
       queue_length, last_error, run_after, budget_tokens AS budget,
       used_input + used_output + used_cache_read + used_cache_write AS used
  FROM rejoinder.chats
"""
_TURNS = """
SELECT id::text, chat_id::text, kind, state, message_id, answer_id, joined_id::text, error, steps,
       announced,
       extract(epoch FROM created_at)::float8 AS created_at,
       extract(epoch FROM ended_at)::float8 AS ended_at
  FROM rejoinder.turns ORDER BY created_at
"""
_MESSAGES = """
SELECT id, chat_id::text, turn_id::text, role, visibility, compressed, deleted, revision, parts,
       input_tokens, output_tokens
  FROM rejoinder.messages ORDER BY chat_id, id
"""
_CALLS = """
SELECT chat_id::text, message_id, call_id, name, arguments, kind, state, result, settled, approval,
       note, external_id, waits_for::text[], extract(epoch FROM created_at)::float8 AS created_at,
       extract(epoch FROM ended_at)::float8 AS ended_at
  FROM rejoinder.tool_calls ORDER BY id
"""
_TRAIL = """
SELECT n, extract(epoch FROM at)::float8 AS at, chat_id::text, turn_id::text, old_status,
       new_status, old_version, new_version, old_lease::text, new_lease::text, worker
  FROM chaos.trail ORDER BY n
"""


@dataclass(frozen=True)
class Chat:
    """A row of `chats`."""

    id: str
    parent_id: str | None
    root_id: str
    status: str
    turn_id: str | None
    lease_id: str | None
    queue_length: int
    last_error: dict[str, Any] | None
    run_after: Any
    budget: int | None
    """Tokens that its tree may use."""
    used: int
    """Tokens that it has used by itself."""


@dataclass(frozen=True)
class Turn:
    """A row of `turns`."""

    id: str
    chat_id: str
    kind: str
    state: str
    message_id: int | None
    answer_id: int | None
    joined_id: str | None
    error: dict[str, Any] | None
    steps: int
    announced: bool
    created_at: float
    ended_at: float | None


@dataclass(frozen=True)
class Message:
    """A row of `messages`."""

    id: int
    chat_id: str
    turn_id: str | None
    role: str
    visibility: str
    compressed: bool
    deleted: bool
    revision: int
    parts: list[dict[str, Any]]
    input_tokens: int | None
    output_tokens: int | None

    @property
    def tokens(self) -> int:
        """What its model call took."""
        return (self.input_tokens or 0) + (self.output_tokens or 0)

    @property
    def words(self) -> str:
        """Its text."""
        return "".join(part["text"] for part in self.parts if part["type"] == "text")

    @property
    def call_ids(self) -> list[str]:
        """The calls it asks for."""
        return [part["call_id"] for part in self.parts if part["type"] == "tool_call"]

    @property
    def result_ids(self) -> list[str]:
        """The calls it answers."""
        return [part["call_id"] for part in self.parts if part["type"] == "tool_result"]

    @property
    def plan(self) -> Plan | None:
        """What a user asks for in it; a summary repeats what was asked, and asks for nothing."""
        return found_in(self.words) if self.role == "user" and not self.compressed else None


@dataclass(frozen=True)
class CallRow:
    """A row of `tool_calls`."""

    chat_id: str
    message_id: int
    call_id: str
    name: str
    arguments: dict[str, Any]
    kind: str
    state: str
    result: dict[str, Any] | None
    settled: bool
    approval: str | None
    note: str | None
    external_id: str | None
    waits_for: list[str] | None
    created_at: float
    ended_at: float | None

    @property
    def nonce(self) -> str:
        """The name of the deed."""
        return str(self.arguments.get("nonce"))

    @property
    def failed(self) -> bool:
        """Whether its result says that it came to nothing."""
        return bool(self.result and self.result.get("is_error"))


@dataclass(frozen=True)
class Move:
    """A row of the trail."""

    n: int
    at: float
    chat_id: str
    turn_id: str | None
    old_status: str | None
    new_status: str
    old_version: int | None
    new_version: int
    old_lease: str | None
    new_lease: str | None
    worker: str | None

    @property
    def pid(self) -> int | None:
        """The process that owned the chat before or after it."""
        tail = (self.worker or "").rpartition(":")[2]
        return int(tail) if tail.isdigit() else None


@dataclass(frozen=True)
class Picture:
    """All rows."""

    chats: list[Chat] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    calls: list[CallRow] = field(default_factory=list)
    trail: list[Move] = field(default_factory=list)

    def by_chat(self) -> dict[str, list[Message]]:
        """Messages of each chat, in order."""
        sorted_out: dict[str, list[Message]] = {chat.id: [] for chat in self.chats}
        for message in self.messages:
            sorted_out.setdefault(message.chat_id, []).append(message)
        return sorted_out

    def moves(self) -> dict[str, list[Move]]:
        """Moves of each chat, in order."""
        sorted_out: dict[str, list[Move]] = {chat.id: [] for chat in self.chats}
        for move in self.trail:
            sorted_out.setdefault(move.chat_id, []).append(move)
        return sorted_out


def take(engine: Engine) -> Picture:
    """Read everything, as of one moment."""
    with engine.connect() as connection:
        connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))

        def rows(query: str) -> list[dict[str, Any]]:
            return [dict(row) for row in connection.execute(text(query)).mappings()]

        return Picture(
            [Chat(**row) for row in rows(_CHATS)],
            [Turn(**row) for row in rows(_TURNS)],
            [Message(**_parsed(row, "parts")) for row in rows(_MESSAGES)],
            [CallRow(**_parsed(row, "arguments", "result")) for row in rows(_CALLS)],
            [Move(**row) for row in rows(_TRAIL)],
        )


def _parsed(row: dict[str, Any], *names: str) -> dict[str, Any]:
    """JSON columns as values, whatever the driver made of them."""
    return row | {n: json.loads(row[n]) for n in names if isinstance(row[n], str)}
