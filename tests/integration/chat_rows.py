"""Chats as the rows show them, in the words of the model, so that both can be compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import text

from rejoinder.core.parts import ToolResult, load, text_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from sqlalchemy import Engine

    from tests.integration.chat_model import Chat

SYNTHETIC = {  # what the answers that nobody gave tell the model, by a piece of their words
    "did not allow": "denied",
    "stopped the turn": "interrupted",
    "went on": "superseded",
    "outcome is unknown": "unknown",
    "before the deadline": "timeout",
}
ALLOWED = "[It was allowed with the words: "


def read_chats(engine: Engine) -> dict[UUID, dict[str, Any]]:
    """Every chat of the database."""
    with engine.connect() as connection:

        def rows(query: str) -> list[Mapping[str, Any]]:
            return [dict(row) for row in connection.execute(text(query)).mappings()]

        found = {
            row.pop("id"): {
                **row,
                "history": [],
                "queue": [],
                "calls": [],
                "turns": {},
                "joined": {},
            }
            for row in (
                dict(row)
                for row in rows("""
                    SELECT id, owner, parent_id, root_id, status, archived, turn_id, lease_id,
                           worker_id, woken, attempt, crashes, snapshot_version, history_version,
                           queue_version, queue_length, last_error ->> 'kind' AS error,
                           action, title, title_source, labels, model, budget_tokens AS budget,
                           coalesce(run_after > clock_timestamp(), false) AS delayed
                      FROM rejoinder.chats
                """)
            )
        }
        for row in rows("SELECT * FROM rejoinder.messages WHERE NOT deleted ORDER BY chat_id, id"):
            said = (row["role"], _said(row["parts"]), row["turn_id"], row["compressed"])
            found[row["chat_id"]]["history"].append((*said, row["model"]))
        for row in rows("SELECT * FROM rejoinder.queued_messages ORDER BY chat_id, position"):
            waits = (row["id"], _said(row["parts"]), row["turn_id"], row["steer"], row["model"])
            found[row["chat_id"]]["queue"].append(waits)
        for row in rows("SELECT * FROM rejoinder.tool_calls WHERE NOT settled ORDER BY id"):
            result = row["result"] and _result(load([row["result"]])[0])
            call = (row["call_id"], row["kind"], row["delivery"] == "once", row["state"], result)
            more = (row["approval"], row["note"], row["deadline"] is not None)
            found[row["chat_id"]]["calls"].append((*call, *more))
        for row in rows("SELECT * FROM rejoinder.turns"):
            found[row["chat_id"]]["turns"][row["id"]] = row["state"]
            if row["state"] == "joined":
                found[row["chat_id"]]["joined"][row["id"]] = row["joined_id"]
    return found


def shown(chat: Chat) -> dict[str, Any]:
    """The model's chat, in the same form."""
    return {
        "owner": chat.owner,
        "parent_id": chat.parent,
        "root_id": chat.root,
        "status": chat.status,
        "archived": chat.archived,
        "turn_id": chat.turn,
        "lease_id": chat.lease,
        "worker_id": chat.worker,
        "woken": chat.woken,
        "attempt": chat.attempt,
        "crashes": chat.crashes,
        "snapshot_version": chat.snapshot,
        "history_version": chat.history_version,
        "queue_version": chat.queue_version,
        "queue_length": len(chat.queue),
        "error": chat.error,
        "action": chat.action,
        "title": chat.title,
        "title_source": chat.title_source,
        "labels": chat.labels,
        "model": chat.model,
        "budget": chat.budget,
        "delayed": chat.delayed,
        "history": [(s.role, s.text, s.turn, s.compressed, s.model) for s in chat.history],
        "queue": [(q.id, q.text, q.turn, q.steer, q.model) for q in chat.queue],
        "calls": [
            (c.id, c.kind, c.once, c.state, c.result, c.approval, c.note, c.deadline is not None)
            for c in chat.calls
        ],
        "turns": chat.turns,
        "joined": chat.joined,
    }


def _said(stored: Sequence[Mapping[str, Any]]) -> str:
    parts = load(stored)
    if any(isinstance(part, ToolResult) for part in parts):
        return " ".join(f"{getattr(part, 'call_id', '?')}={_result(part)}" for part in parts)
    return text_of(parts)


def _result(part: object) -> str:
    assert isinstance(part, ToolResult)
    content = str(part.content)
    if not part.is_error:
        return content.replace(f"\n\n{ALLOWED}", " [")
    return next(word for words, word in SYNTHETIC.items() if words in content)
