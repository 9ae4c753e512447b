"""Taking a chat: the one statement that makes somebody its owner.

A transition like the others in here, and the only one that needs no function of its own: `pending`
and due, to `running`, under a new lease. It also tells the owner all that it has to know of the
chat's rows to go on from there (`cas_store.py`).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from sqlalchemy import Engine
from uuid_utils.compat import uuid7

from models.base import table_of
from models.machine.cas_store import KnownRow
from models.machine.one_statement import CLAIMED
from models.prepared import Prepared
from models.tables import Chat
from models.types import unescaped
from rejoinder.core.effects import Event, EventKind, Fence
from rejoinder.core.limits import SUSPECT_AT
from rejoinder.core.messages import ActionKind, Budget, TitleSource, TurnKind
from rejoinder.core.parts import Json
from rejoinder.core.state import Status

_CHATS = table_of(Chat)
NAMES = tuple(column.name for column in _CHATS.columns)
COLUMNS = ", ".join(f"c.{name}" for name in NAMES)
_AS_PYTHON: dict[str, Callable[[str], Any]] = {
    "status": Status,
    "title_source": TitleSource,
    "action": ActionKind,
    "title": unescaped,
}
"""Columns that the driver does not turn into what they are."""
_BESIDE = {
    "turn_kind": "t.kind",
    "turn_steps": "t.steps",
    "tree_tokens": "r.budget_tokens",
    "tree_micros": "r.budget_micros",
    "has_calls": "EXISTS (SELECT FROM rejoinder.tool_calls AS k"
    " WHERE k.chat_id = c.id AND NOT k.settled)",
    "version_before": "before.snapshot_version",
    "had_partial": "before.partial IS NOT NULL",
    **dict(zip(("now", "first_id", "second_id"), CLAIMED, strict=True)),
}
"""What the claim tells besides the chat's own columns."""
_TOLD = (*NAMES, *_BESIDE)
_CLAIM = Prepared(f"""
WITH c AS (
    UPDATE rejoinder.chats AS c
       SET status = 'running', worker_id = w.id, lease_id = CAST(%(lease_id)s AS uuid),
           step_id = CAST(%(step_id)s AS uuid), run_after = NULL, redispatch_at = NULL,
           dispatches = 0, partial = NULL,
           claims_since_progress = c.claims_since_progress + 1,
           snapshot_version = c.snapshot_version + 1, updated_at = clock_timestamp()
      FROM rejoinder.workers AS w
     WHERE c.id = CAST(%(chat_id)s AS uuid) AND c.status = 'pending' AND NOT c.archived
       AND (c.run_after IS NULL OR c.run_after <= clock_timestamp())
       AND (c.crashes < CAST(%(suspect_at)s AS integer) OR CAST(%(suspects)s AS boolean))
       AND w.id = CAST(%(worker_id)s AS uuid)
       AND w.seen_at > clock_timestamp() - CAST(%(dead_after)s AS interval)
    RETURNING {COLUMNS}
)
SELECT {COLUMNS}, {", ".join(_BESIDE.values())}
  FROM c
  LEFT JOIN rejoinder.chats AS before ON before.id = c.id
  LEFT JOIN rejoinder.chats AS r ON r.id = c.root_id
  LEFT JOIN rejoinder.turns AS t ON t.id = c.turn_id
""")  # noqa: S608  # names of our own columns


@dataclass(frozen=True)
class Around:
    """What a step has to know besides the chat's own row."""

    turn_kind: TurnKind
    steps: int
    budget: Budget
    has_calls: bool
    now: datetime


@dataclass(frozen=True)
class Claim:
    """A lease on a chat, and what the step needs to know first."""

    fence: Fence
    turn_id: UUID
    attempt: int
    snapshot_version: int
    crashes: int
    step_id: UUID
    known: KnownRow | None = None
    """What the owner knows of the chat's rows; None: they have to be read."""
    around: Around | None = None
    """What stands around them; None: it has to be read."""
    claims_since_progress: int = 1
    """How often the chat was claimed since something came of it, this time included."""
    drops_partial: bool = False
    """Readers may have seen words of an attempt that is given up with this (`partials.py`)."""
    kept: bool = False
    """The same worker has had the chat before (see `commit`): nobody has seen it change hands."""

    @property
    def events(self) -> tuple[Event, ...]:
        """What readers are told of it."""
        told: dict[str, Json] = {"status": Status.RUNNING, "turn_id": str(self.turn_id)}
        running = Event(EventKind.STATUS, {**told, "run_after": None})
        return (Event(EventKind.PREVIEW_RESET, {}), running) if self.drops_partial else (running,)

    @property
    def suspect(self) -> bool:
        """Whether its next crash is its last: it should take nobody along."""
        return self.crashes >= SUSPECT_AT


def claim(  # noqa: PLR0913  # who takes what, as which step
    engine: Engine,
    chat_id: UUID,
    worker_id: UUID,
    *,
    dead_after: timedelta,
    step_id: UUID | None = None,
    suspects: bool = True,
) -> Claim | None:
    """Take a due pending chat, or nothing. Without `suspects`, only one that is not suspect.

    One statement by itself, so one round trip. Index: chats_pkey, and those of what is read along.
    Locks that one row, and never waits for another chat. If a transition of this chat is under way,
    it takes the chat as that leaves it; one that makes it runnable rings again by itself.
    Safe because the condition is checked again on the row as the lock finds it, so of two claims
    one gets no row; and a process that is counted as dead cannot claim, so the sweeper and it
    never disagree about who owns the chat.

    What is read along is as old as the beginning of the statement. If it had to wait for somebody
    who changed the chat, that is too old, and counts for nothing: the versions tell. The places in
    history are taken while the row is locked: whoever else appends comes after the lease.
    """
    lease_id, step_id = uuid7(), step_id or uuid7()
    given = {
        "chat_id": chat_id,
        "worker_id": worker_id,
        "lease_id": lease_id,
        "step_id": step_id,
        "dead_after": dead_after,
        "suspect_at": SUSPECT_AT,
        "suspects": suspects,
    }
    found = _CLAIM.one(engine, given)
    if found is not None:
        row = SimpleNamespace(**dict(zip(_TOLD, found, strict=True)))
        fence = Fence(chat_id, lease_id, row.history_version)
        fresh = row.version_before == row.snapshot_version - 1
        return Claim(
            fence,
            row.turn_id,
            row.attempt,
            row.snapshot_version,
            row.crashes,
            step_id,
            known=_known(row) if fresh else None,
            around=around(row) if fresh else None,
            claims_since_progress=row.claims_since_progress,
            drops_partial=row.had_partial or not fresh,
        )
    return None


def chat_of(row: SimpleNamespace) -> dict[str, Any]:
    """The chat's own columns, as they are in Python."""
    chat = {name: vars(row)[name] for name in NAMES}
    for name, as_python in _AS_PYTHON.items():
        if (value := chat[name]) is not None:
            chat[name] = as_python(value)
    return chat


def _known(row: SimpleNamespace) -> KnownRow:
    return KnownRow(
        chat=chat_of(row),
        now=row.now,
        read_at=time.monotonic(),
        message_ids=(row.first_id, row.second_id),
        calls=None if row.has_calls else (),
    )


def around(row: Any) -> Around:
    """What a row that was read for a step says of the chat's surroundings."""
    return Around(
        TurnKind(row.turn_kind),
        row.turn_steps,
        Budget(row.tree_tokens, row.tree_micros),
        has_calls=row.has_calls,
        now=row.now,
    )
