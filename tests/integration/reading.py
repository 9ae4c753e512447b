"""Reads rows as words, so that a test's expectations read like a conversation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import text

from rejoinder.core import parts
from rejoinder.core.parts import ToolCall, ToolResult

if TYPE_CHECKING:
    from uuid import UUID

    from tests.chats import World


def history(world: World, chat_id: UUID) -> list[str]:
    """The messages that are in history, e.g. "user: hello", "tool: call-1=fine call-2!late"."""
    rows = world.read(
        "SELECT * FROM rejoinder.messages WHERE chat_id = :id AND NOT deleted ORDER BY id",
        id=chat_id,
    )
    return [f"{row['role']}: {_words(row['parts'])}" for row in rows]


def queue(world: World, chat_id: UUID) -> list[str]:
    """The texts that wait, first first."""
    rows = world.read(
        "SELECT parts FROM rejoinder.queued_messages WHERE chat_id = :id ORDER BY position",
        id=chat_id,
    )
    return [_words(row["parts"]) for row in rows]


def queued_id(world: World, said: str) -> int:
    """The id of the queued message that says this."""
    rows = world.read("SELECT id, parts FROM rejoinder.queued_messages")
    (found,) = [row["id"] for row in rows if _words(row["parts"]) == said]
    return int(found)


def message_id(world: World, said: str) -> int:
    """The id of the message (deleted or not) that says this."""
    rows = world.read("SELECT id, parts FROM rejoinder.messages")
    (found,) = [row["id"] for row in rows if _words(row["parts"]) == said]
    return int(found)


def calls(world: World, chat_id: UUID) -> dict[str, str]:
    """The tool calls, e.g. {"call-1": "finished settled"}."""
    rows = world.read(
        "SELECT * FROM rejoinder.tool_calls WHERE chat_id = :id ORDER BY id", id=chat_id
    )
    return {r["call_id"]: f"{r['state']}{' settled' if r['settled'] else ''}" for r in rows}


def turn(world: World, turn_id: UUID | None) -> dict[str, Any]:
    """One turn's row."""
    (row,) = world.read("SELECT * FROM rejoinder.turns WHERE id = :id", id=turn_id)
    return row


def sql(world: World, statement: str, **parameters: object) -> None:
    """Run one statement, as an operator with psql would."""
    with world.engine.begin() as connection:
        connection.execute(text(statement), parameters)


def _words(stored: list[dict[str, Any]]) -> str:
    said = []
    for part in parts.load(stored):
        match part:
            case ToolCall():
                said.append(f"[{part.call_id}]")
            case ToolResult():
                said.append(f"{part.call_id}{'!' if part.is_error else '='}{part.content}")
            case _:
                said.append(parts.text_of([part]))
    return " ".join(said)
