"""What each step took, for people who look: who ran it, when, for how long, and how it ended.

A row is written in the transaction that ends the step, by the worker (`Took`), or by whoever
recovers the chat of one that died (`lost`).
"""

from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.orm import Session

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
