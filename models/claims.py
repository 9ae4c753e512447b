"""The few statements where concurrency lives: claims, heartbeats, and what the sweeper looks for.

Each says which index it uses, what it locks, and why it is safe. They are plain SQL on purpose:
what matters here is what Postgres does. Clocks are Postgres' own; `statement_timestamp()` rather
than `clock_timestamp()` wherever an index has to be searched with it. `claim` itself is in
`machine/claim.py`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Engine, Row, TextClause, text
from sqlalchemy.orm import Session

from models.engine import at_once
from models.machine.claim import Claim, claim
from rejoinder.core.effects import Dispatch, TurnEnd
from rejoinder.core.limits import REDISPATCH_FIRST, REDISPATCH_MOST, SUSPECT_AT
from rejoinder.core.messages import TurnState
from rejoinder.core.parts import load, text_of
from rejoinder.core.state import Status

__all__ = ["Claim", "claim"]

_REGISTER = text("""
INSERT INTO rejoinder.workers AS w (id, name) VALUES (:worker_id, :name)
ON CONFLICT (id) DO UPDATE SET seen_at = clock_timestamp(), name = excluded.name
""")

_HEARTBEAT = text("""
UPDATE rejoinder.workers SET seen_at = clock_timestamp() WHERE id = :worker_id
""")

_LEASES = text("""
SELECT c.id AS chat_id, c.lease_id, c.step_id, c.history_version, c.status
  FROM rejoinder.chats AS c
 WHERE c.worker_id = :worker_id
""")

_BEGIN_SWEEP = text("""
UPDATE rejoinder.sweeps SET swept_at = clock_timestamp()
 WHERE name = 'sweep' AND swept_at <= clock_timestamp() - :older_than
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
   AND c.lease_id = ANY(CAST(:leases AS uuid[]))
   AND (NOT :spare OR pg_postmaster_start_time() <= statement_timestamp() - :dead_after)
 LIMIT :limit
   FOR NO KEY UPDATE OF w, c SKIP LOCKED
""")

_DEAD_LEASES = text("""
SELECT c.id AS chat_id, c.lease_id, c.history_version, c.status
  FROM rejoinder.workers AS w JOIN rejoinder.chats AS c ON c.worker_id = w.id
 WHERE w.seen_at <= statement_timestamp() - :dead_after
 LIMIT :limit
""")

_BY_STEP = text("""
SELECT c.id AS chat_id, c.turn_id, c.lease_id, c.history_version
  FROM rejoinder.chats AS c
 WHERE c.step_id = ANY(CAST(:ids AS uuid[]))
""")

_BY_TURN = text("""
SELECT t.chat_id, t.id AS turn_id, q.id AS queued_id
  FROM rejoinder.turns AS t
  LEFT JOIN rejoinder.queued_messages AS q ON q.chat_id = t.chat_id AND q.turn_id = t.id
 WHERE t.id = ANY(CAST(:ids AS uuid[])) AND t.state IN ('open', 'queued', 'joined')
""")

_IS_SUSPECT = text("""
SELECT EXISTS (SELECT FROM rejoinder.chats AS c
                WHERE c.id = :chat_id AND c.status = 'pending' AND c.crashes >= :suspect_at)
""")

_DUE = text("""
SELECT count(*) FROM rejoinder.chats AS c
 WHERE c.status = 'pending' AND (c.run_after IS NULL OR c.run_after <= statement_timestamp())
""")

_BURY = text("""
DELETE FROM rejoinder.workers AS w
 WHERE w.seen_at <= statement_timestamp() - :gone_after
   AND NOT EXISTS (SELECT FROM rejoinder.chats AS c WHERE c.worker_id = w.id)
""")

_PURGE_KEYS = text("""
DELETE FROM rejoinder.idempotency_keys AS k
 USING (SELECT o.owner, o.key FROM rejoinder.idempotency_keys AS o
         WHERE o.created_at <= statement_timestamp() - :keep
         ORDER BY o.created_at
         LIMIT :limit
           FOR UPDATE SKIP LOCKED) AS old
 WHERE k.owner = old.owner AND k.key = old.key
""")

_EXPIRED = text("""
SELECT c.id AS chat_id
  FROM rejoinder.chats AS c
 WHERE c.deadline <= statement_timestamp() AND c.id <> ALL(CAST(:skip AS uuid[]))
 ORDER BY c.deadline
 LIMIT :limit
   FOR NO KEY UPDATE SKIP LOCKED
""")

_WAITS_OVER = text("""
SELECT c.id AS chat_id
  FROM rejoinder.chats AS c
 WHERE c.deadline IS NOT NULL AND c.status = 'sleeping' AND c.id <> ALL(CAST(:skip AS uuid[]))
   AND EXISTS (
       SELECT FROM rejoinder.tool_calls AS k
        WHERE k.chat_id = c.id AND NOT k.settled AND k.kind = 'children' AND k.result IS NULL
          AND k.approval IS DISTINCT FROM 'wanted'
          AND NOT EXISTS (
              SELECT FROM unnest(k.waits_for) AS w(id) JOIN rejoinder.chats AS b ON b.id = w.id
               WHERE b.status NOT IN ('waiting', 'error')))
 LIMIT :limit
   FOR NO KEY UPDATE OF c SKIP LOCKED
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

_SENT = text("""
UPDATE rejoinder.tool_calls SET sent = true
 WHERE chat_id = :chat_id AND external_id = :external_id AND NOT settled
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
   SET dispatches = c.dispatches + 1, step_id = gen_random_uuid(),
       redispatch_at = statement_timestamp()
                     + CASE WHEN c.crashes > 0 THEN :first
                            ELSE least(:first * power(2, least(c.dispatches, 16)), :most) END
  FROM overdue
 WHERE c.id = overdue.id
RETURNING c.id AS chat_id, c.turn_id, c.step_id
""")


@dataclass(frozen=True)
class Step:
    """A chat, as found by the step that has to do with it."""

    chat_id: UUID
    turn_id: UUID | None
    lease_id: UUID | None
    history_version: int


@dataclass(frozen=True)
class Lease:
    """A chat that this process owns, as the database sees it."""

    chat_id: UUID
    lease_id: UUID
    step_id: UUID
    history_version: int
    status: Status


def register_worker(engine: Engine, worker_id: UUID, name: str) -> None:
    """Announce a process. Doing it again (after its row was buried) is fine."""
    with at_once(engine) as connection:
        connection.execute(_REGISTER, {"worker_id": worker_id, "name": name})


def heartbeat(engine: Engine, worker_id: UUID) -> list[Lease] | None:
    """Say that this process lives, and learn which leases it still holds.

    Two round trips per process, however many chats it runs. Indexes: workers_pkey, chats_leased.
    Locks only the worker's own row; waits for a sweeper that is just taking this worker's chats,
    and then no longer finds them: the second statement looks again, where a CTE would still see
    the chats as they were before the wait. The first is committed by itself: whoever has the
    chats locked for long keeps nobody from living. None: the row is gone, register again.
    """
    with at_once(engine) as connection:
        if not connection.execute(_HEARTBEAT, {"worker_id": worker_id}).rowcount:
            return None
        rows = connection.execute(_LEASES, {"worker_id": worker_id}).all()
    return [
        Lease(row.chat_id, row.lease_id, row.step_id, row.history_version, Status(row.status))
        for row in rows
    ]


def begin_sweep(engine: Engine, *, older_than: timedelta = timedelta(0)) -> bool:
    """Note that a sweep begins, if the last one began so long ago.

    Index: sweeps_pkey. Locks that one row: of several who find the last sweep overdue, the others
    wait for the first, look at the row again, and leave it at that.
    """
    with at_once(engine) as connection:
        return bool(connection.execute(_BEGIN_SWEEP, {"older_than": older_than}).rowcount)


def retire_worker(engine: Engine, worker_id: UUID) -> None:
    """Remove the row of a process that ends well and owns nothing."""
    with at_once(engine) as connection:
        connection.execute(_RETIRE, {"worker_id": worker_id})


def dead_owners(  # noqa: PLR0913  # all but one are named
    tx: Session,
    *,
    dead_after: timedelta,
    leases: Iterable[UUID],
    spare: bool = False,
    limit: int = 100,
    skip: Sequence[UUID] = (),
) -> list[tuple[UUID, UUID]]:
    """Chats (and leases) whose owner has been silent for too long; locked for this transaction.

    Only those whose lease is among `leases`: what readers had seen of their answers is looked for
    before (see `dead_leases`), and who dies meanwhile is the next sweep's. `spare` everybody for a
    while after Postgres was started: while it was away nobody's heart could beat.

    Reads `workers` (a row per process), then chats_leased. Locks the worker's row too: an owner
    whose heartbeat is under way is skipped, for it lives; one that comes later waits, and finds
    its leases gone. SKIP LOCKED: a process is one sweeper's at a time, and a chat in use is for
    next time. `skip` are chats that could not be moved.
    """
    given = {
        "dead_after": dead_after,
        "spare": spare,
        "limit": limit,
        "skip": [str(chat) for chat in skip],
        "leases": [str(lease) for lease in leases],
    }
    rows = tx.execute(_DEAD, given)
    return [(row.chat_id, row.lease_id) for row in rows]


def dead_leases(
    engine: Engine, *, dead_after: timedelta, limit: int = 1000
) -> list[tuple[UUID, UUID, int]]:
    """Chats, leases and history versions of dead owners, those that are to stop first. No lock."""
    rows = _at_once(engine, _DEAD_LEASES, dead_after=dead_after, limit=limit)
    ordered = sorted(rows, key=lambda row: row.status != Status.INTERRUPTING)
    return [(row.chat_id, row.lease_id, row.history_version) for row in ordered]


def by_step(engine: Engine, step_ids: Sequence[UUID]) -> list[Step]:
    """The chats that these steps run, are to run, or have parked. Index: chats_step. No lock."""
    rows = _at_once(engine, _BY_STEP, ids=[str(step_id) for step_id in step_ids])
    return [Step(row.chat_id, row.turn_id, row.lease_id, row.history_version) for row in rows]


def by_turn(engine: Engine, turn_ids: Sequence[UUID]) -> list[tuple[UUID, UUID, int | None]]:
    """The chats, turns and queued messages of these turns, as far as they are not over.

    Indexes: turns_pkey, queued_messages_order. No lock.
    """
    rows = _at_once(engine, _BY_TURN, ids=[str(turn_id) for turn_id in turn_ids])
    return [(row.chat_id, row.turn_id, row.queued_id) for row in rows]


def is_suspect(engine: Engine, chat_id: UUID) -> bool:
    """Whether a chat waits that has taken workers down. Index: chats_pkey. No lock."""
    found = _at_once(engine, _IS_SUSPECT, chat_id=chat_id, suspect_at=SUSPECT_AT)
    return bool(found[0][0])


def announced(engine: Engine, turn_ids: Sequence[UUID]) -> None:
    """Note that the results of these turns were stored for those who wait for them."""
    with engine.begin() as connection:
        connection.execute(_ANNOUNCED, {"ids": [str(turn_id) for turn_id in turn_ids]})


def sent(engine: Engine, chat_id: UUID, external_id: str) -> None:
    """Note that the broker took another app's task. Index: tool_calls_open. Locks that one call."""
    with engine.begin() as connection:
        connection.execute(_SENT, {"chat_id": chat_id, "external_id": external_id})


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


def purge_keys(tx: Session, *, keep: timedelta, limit: int = 100) -> int:
    """Forget a batch of requests that nobody repeats any more. Index: idempotency_keys_age."""
    purged: Any = tx.execute(_PURGE_KEYS, {"keep": keep, "limit": limit})
    return int(purged.rowcount)


def expired(tx: Session, *, limit: int = 100, skip: Sequence[UUID] = ()) -> list[UUID]:
    """Parked chats past their deadline; locked. Index: chats_parked, in its own order."""
    given = {"limit": limit, "skip": [str(chat) for chat in skip]}
    return [row.chat_id for row in tx.execute(_EXPIRED, given)]


def waits_over(tx: Session, *, limit: int = 100, skip: Sequence[UUID] = ()) -> list[UUID]:
    """Chats that sleep for children none of which is busy any more (or there at all); locked.

    Whoever should have woken them died between a child's commit and its word. Indexes: chats_parked
    (all that is parked), then tool_calls_open and chats_pkey. SKIP LOCKED: one that is being woken
    needs nobody else. Safe without locking the children: one that gets busy again meanwhile only
    means that the parent looks at it, and goes back to sleep.
    """
    given = {"limit": limit, "skip": [str(chat) for chat in skip]}
    return [row.chat_id for row in tx.execute(_WAITS_OVER, given)]


def due(tx: Session) -> int:
    """How many chats wait for a worker. Index: chats_overdue, all of it; no lock."""
    return int(tx.execute(_DUE).scalar_one())


def redispatch(tx: Session, *, limit: int = 1000) -> list[Dispatch]:
    """Pending chats whose message is overdue, and when to look again.

    Index: chats_overdue, in its own order. SKIP LOCKED, so that it neither waits for a claim nor
    repeats what another sweeper repeats. Gaps double (see `redispatch_gap`), so that a backlog
    does not grow by its own repetitions; not for a chat that lost its worker: whoever left it
    as a suspect may be gone, too. Not a transition: what a reader sees of the chat stays.
    """
    rows = tx.execute(
        _REDISPATCH, {"limit": limit, "first": REDISPATCH_FIRST, "most": REDISPATCH_MOST}
    )
    return [Dispatch(row.chat_id, row.turn_id, row.step_id) for row in rows]


def _at_once(engine: Engine, statement: TextClause, **parameters: object) -> Sequence[Row[Any]]:
    with at_once(engine) as connection:
        return connection.execute(statement, parameters).all()
