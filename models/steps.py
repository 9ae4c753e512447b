"""What each step took, for people who look: who ran it, when, for how long, and how it ended.

A row is written in the transaction that ends the step, by the worker (`Took`), or by whoever
recovers the chat of one that died (`lost`).
"""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from models.tables import Chat, StepRow
from rejoinder.core.errors import Rejected

_WRITE = text("""
INSERT INTO rejoinder.steps
       (chat_id, turn_id, task_id, worker, attempt, outcome, began_at,
        claim_ms, load_ms, model_ms, tools_ms, write_ms, input_tokens, output_tokens)
VALUES (:chat_id, :turn_id, :task_id, :worker, :attempt, :outcome,
        clock_timestamp() - make_interval(secs => :seconds),
        :claim_ms, :load_ms, :model_ms, :tools_ms, :write_ms, :input_tokens, :output_tokens)
""")

_LOST = text("""
INSERT INTO rejoinder.steps (chat_id, turn_id, task_id, worker, attempt, outcome, began_at)
SELECT c.id, c.turn_id, c.step_id, w.name, c.attempt, 'recover', c.updated_at
  FROM rejoinder.chats AS c JOIN rejoinder.workers AS w ON w.id = c.worker_id
 WHERE c.id = :chat_id
""")


@dataclass(frozen=True)
class Took:
    """One run of one step, as its worker saw it."""

    turn_id: UUID
    task_id: UUID
    worker: str
    attempt: int
    outcome: str
    seconds: float
    claim_ms: float
    load_ms: float | None
    model_ms: float | None
    tools_ms: float | None
    write_ms: float | None
    input_tokens: int | None
    output_tokens: int | None


def write(tx: Session, chat_id: UUID, took: Took) -> None:
    """Note what a step took, with what it did."""
    tx.execute(_WRITE, {"chat_id": chat_id, **vars(took)})


def lost(tx: Session, chat_id: UUID) -> None:
    """Note that a step's worker died. Before its chat is taken from it: the row says whose it was.

    `began_at` is when that worker last wrote something.
    """
    tx.execute(_LOST, {"chat_id": chat_id})


def page(
    tx: Session, chat_id: UUID, *, before: int | None = None, limit: int = 100
) -> dict[str, Any]:
    """A page of a chat's steps, newest first; `next` goes into `before`. Index: steps_pkey."""
    if tx.get(Chat, chat_id) is None:
        raise Rejected(f"There is no chat {chat_id}", "check its id")
    query = select(StepRow).where(StepRow.chat_id == chat_id).order_by(StepRow.id.desc())
    if before is not None:
        query = query.where(StepRow.id < before)
    rows = tx.scalars(query.limit(limit + 1)).all()
    found = rows[:limit]
    return {
        "steps": [_step(row) for row in found],
        "next": found[-1].id if len(rows) > len(found) else None,
    }


def _step(row: StepRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "turn_id": str(row.turn_id) if row.turn_id else None,
        "task_id": str(row.task_id) if row.task_id else None,
        "worker": row.worker,
        "attempt": row.attempt,
        "outcome": row.outcome,
        "began_at": row.began_at.isoformat(),
        "ended_at": row.ended_at.isoformat(),
        "claim_ms": row.claim_ms,
        "load_ms": row.load_ms,
        "model_ms": row.model_ms,
        "tools_ms": row.tools_ms,
        "write_ms": row.write_ms,
        "input_tokens": row.input_tokens,
        "output_tokens": row.output_tokens,
    }
