"""The few statements where concurrency lives: claims, heartbeats, and what the sweeper looks for.

Each says which index it uses, what it locks, and why it is safe. They are plain SQL on purpose:
what matters here is what Postgres does. Clocks are Postgres' own; `statement_timestamp()` rather
than `clock_timestamp()` wherever an index has to be searched with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Engine, Row, TextClause, text
from sqlalchemy.orm import Session
from uuid_utils.compat import uuid7

from rejoinder.core.effects import Fence, TurnEnd
from rejoinder.core.limits import REDISPATCH_FIRST, REDISPATCH_MOST
from rejoinder.core.messages import TurnState
from rejoinder.core.parts import load, text_of
from rejoinder.core.state import Status

_CLAIM = text("""
UPDATE rejoinder.chats AS c
   SET status = 'running', lease_id = :lease_id, worker_id = w.id,
       run_after = NULL, redispatch_at = NULL, dispatches = 0,
       snapshot_version = c.snapshot_version + 1, updated_at = clock_timestamp()
  FROM rejoinder.workers AS w
 WHERE c.id = :chat_id AND c.status = 'pending' AND NOT c.archived
   AND (c.run_after IS NULL OR c.run_after <= clock_timestamp())
   AND w.id = :worker_id AND w.seen_at > clock_timestamp() - :dead_after
RETURNING c.history_version, c.snapshot_version, c.turn_id, c.attempt
""")

_REGISTER = text("""
INSERT INTO rejoinder.workers AS w (id, name) VALUES (:worker_id, :name)
ON CONFLICT (id) DO UPDATE SET seen_at = clock_timestamp(), name = excluded.name
""")

_HEARTBEAT = text("""
UPDATE rejoinder.workers SET seen_at = clock_timestamp() WHERE id = :worker_id;
SELECT w.id AS worker_id, c.id AS chat_id, c.lease_id, c.history_version, c.status
  FROM rejoinder.workers AS w LEFT JOIN rejoinder.chats AS c ON c.worker_id = w.id
 WHERE w.id = :worker_id
""")

_RETIRE = text("""
DELETE FROM rejoinder.workers AS w
 WHERE w.id = :worker_id
   AND NOT EXISTS (SELECT FROM rejoinder.chats AS c WHERE c.worker_id = w.id)
""")

_DEAD = text("""
SELECT c.id AS chat_id, c.lease_id
  FROM rejoinder.workers AS w JOIN rejoinder.chats AS c ON c.worker_id = w.id
 WHERE w.seen_at <= statement_timestamp() - :dead_after AND c.id <> ALL(CAST(:skip AS uuid[]))
 LIMIT :limit
   FOR NO KEY UPDATE OF w, c SKIP LOCKED
""")

_BURY = text("""
DELETE FROM rejoinder.workers AS w
 WHERE w.seen_at <= statement_timestamp() - :gone_after
   AND NOT EXISTS (SELECT FROM rejoinder.chats AS c WHERE c.worker_id = w.id)
""")

_EXPIRED = text("""
SELECT c.id AS chat_id
  FROM rejoinder.chats AS c
 WHERE c.deadline <= statement_timestamp() AND c.id <> ALL(CAST(:skip AS uuid[]))
 ORDER BY c.deadline
 LIMIT :limit
   FOR NO KEY UPDATE SKIP LOCKED
""")

_ANNOUNCED = text("""
UPDATE rejoinder.turns SET announced = true WHERE id = ANY(CAST(:ids AS uuid[]))
""")

_UNANNOUNCED = text("""
SELECT t.id, t.chat_id, t.state, t.answer_id, t.error, m.parts
  FROM rejoinder.turns AS t
  LEFT JOIN rejoinder.messages AS m ON m.chat_id = t.chat_id AND m.id = t.answer_id
 WHERE t.ended_at <= statement_timestamp() - :overdue AND NOT t.announced
 ORDER BY t.ended_at
 LIMIT :limit
""")

_REDISPATCH = text("""
WITH overdue AS (
    SELECT c.id
      FROM rejoinder.chats AS c
     WHERE c.status = 'pending' AND c.redispatch_at <= statement_timestamp()
     ORDER BY c.redispatch_at
     LIMIT :limit
       FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE rejoinder.chats AS c
   SET dispatches = c.dispatches + 1,
       redispatch_at = statement_timestamp()
                     + least(:first * power(2, least(c.dispatches, 16)), :most)
  FROM overdue
 WHERE c.id = overdue.id
RETURNING c.id AS chat_id, c.turn_id
""")


@dataclass(frozen=True)
class Claim:
    """A lease on a chat, and what the step needs to know first."""

    fence: Fence
    turn_id: UUID
    attempt: int
    snapshot_version: int


@dataclass(frozen=True)
class Lease:
    """A chat that this process owns, as the database sees it."""

    chat_id: UUID
    lease_id: UUID
    history_version: int
    status: Status


def claim(engine: Engine, chat_id: UUID, worker_id: UUID, *, dead_after: timedelta) -> Claim | None:
    """Take a due pending chat, or nothing.

    One statement in autocommit, so one round trip (besides the pool's ping). Index: chats_pkey.
    Locks that one row, and never waits for another chat. If a transition of this chat is under way,
    it takes the chat as that leaves it; one that makes it runnable rings again by itself.
    Safe because the condition is checked again on the row as the lock finds it, so of two claims
    one gets no row; and a process that is counted as dead cannot claim, so the sweeper and it
    never disagree about who owns the chat.
    """
    lease_id = uuid7()
    rows = _at_once(
        engine,
        _CLAIM,
        chat_id=chat_id,
        worker_id=worker_id,
        lease_id=lease_id,
        dead_after=dead_after,
    )
    for row in rows:
        fence = Fence(chat_id, lease_id, row.history_version)
        return Claim(fence, row.turn_id, row.attempt, row.snapshot_version)
    return None


def register_worker(engine: Engine, worker_id: UUID, name: str) -> None:
    """Announce a process. Doing it again (after its row was buried) is fine."""
    with engine.begin() as connection:
        connection.execute(_REGISTER, {"worker_id": worker_id, "name": name})


def heartbeat(engine: Engine, worker_id: UUID) -> list[Lease] | None:
    """Say that this process lives, and learn which leases it still holds.

    One round trip per process, however many chats it runs. Indexes: workers_pkey, chats_leased.
    Locks only the worker's own row; waits for a sweeper that is just taking this worker's chats,
    and then no longer finds them: the second statement looks again, where a CTE would still see
    the chats as they were before the wait. None: the row is gone, register again.
    """
    rows = _at_once(engine, _HEARTBEAT, worker_id=worker_id)
    if not rows:
        return None
    return [
        Lease(row.chat_id, row.lease_id, row.history_version, Status(row.status))
        for row in rows
        if row.chat_id is not None
    ]


def retire_worker(engine: Engine, worker_id: UUID) -> None:
    """Remove the row of a process that ends well and owns nothing."""
    with engine.begin() as connection:
        connection.execute(_RETIRE, {"worker_id": worker_id})


def dead_owners(
    tx: Session, *, dead_after: timedelta, limit: int = 100, skip: Sequence[UUID] = ()
) -> list[tuple[UUID, UUID]]:
    """Chats (and leases) whose owner has been silent for too long; locked for this transaction.

    Reads `workers` (a row per process), then chats_leased. Locks the worker's row too: an owner
    whose heartbeat is under way is skipped, for it lives; one that comes later waits, and finds
    its leases gone. SKIP LOCKED: a process is one sweeper's at a time, and a chat in use is for
    next time. `skip` are chats that could not be moved.
    """
    given = {"dead_after": dead_after, "limit": limit, "skip": [str(chat) for chat in skip]}
    rows = tx.execute(_DEAD, given)
    return [(row.chat_id, row.lease_id) for row in rows]


def announced(engine: Engine, turn_ids: Sequence[UUID]) -> None:
    """Note that the results of these turns were stored for those who wait for them."""
    with engine.begin() as connection:
        connection.execute(_ANNOUNCED, {"ids": [str(turn_id) for turn_id in turn_ids]})


def unannounced(tx: Session, *, limit: int = 100) -> list[tuple[UUID, TurnEnd]]:
    """Turns that ended a while ago and whose result nobody stored: its publisher died first.

    Index: turns_unannounced, in its own order. No lock: storing a result twice is harmless.
    """
    rows = tx.execute(_UNANNOUNCED, {"overdue": REDISPATCH_FIRST, "limit": limit})
    return [
        (
            row.chat_id,
            TurnEnd(
                row.id,
                TurnState(row.state),
                row.answer_id,
                text_of(load(row.parts)) if row.parts is not None else None,
                row.error,
            ),
        )
        for row in rows
    ]


def bury_workers(tx: Session, *, gone_after: timedelta) -> None:
    """Remove rows of processes that died long ago and own nothing any more."""
    tx.execute(_BURY, {"gone_after": gone_after})


def expired(tx: Session, *, limit: int = 100, skip: Sequence[UUID] = ()) -> list[UUID]:
    """Parked chats past their deadline; locked. Index: chats_parked, in its own order."""
    given = {"limit": limit, "skip": [str(chat) for chat in skip]}
    return [row.chat_id for row in tx.execute(_EXPIRED, given)]


def redispatch(tx: Session, *, limit: int = 1000) -> list[tuple[UUID, UUID]]:
    """Pending chats (and turns) whose message is overdue, and when to look again.

    Index: chats_overdue, in its own order. SKIP LOCKED, so that it neither waits for a claim nor
    repeats what another sweeper repeats. Gaps double (see `redispatch_gap`), so that a backlog
    does not grow by its own repetitions. Not a transition: what a reader sees of the chat stays.
    """
    rows = tx.execute(
        _REDISPATCH, {"limit": limit, "first": REDISPATCH_FIRST, "most": REDISPATCH_MOST}
    )
    return [(row.chat_id, row.turn_id) for row in rows]


def _at_once(engine: Engine, statement: TextClause, **parameters: object) -> Sequence[Row[Any]]:
    """Run one statement as a transaction of its own, in one round trip: no BEGIN, no COMMIT."""
    with engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        return connection.execute(statement, parameters).all()
