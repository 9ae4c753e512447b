"""One sweep over all chats: whoever cannot move by itself is moved.

Idempotent and safe to run twice at once: rows are found with SKIP LOCKED and every transition
checks again under the lock. A chat that cannot be moved is reported and does not hold up the rest.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from uuid import UUID

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from models import claims, machine
from models.engine import transaction
from rejoinder.core.effects import Dispatch, Effects, TurnEnd
from rejoinder.core.errors import Stale
from rejoinder.core.messages import NewMessage

log = logging.getLogger(__name__)

GONE_AFTER = timedelta(hours=1)
"""How long the row of a dead process that owns nothing is kept, for people who look."""
REBUILD_SECONDS = 5.0
"""How long one sweep looks for dead owners' words: Redis may be slow to say that it is away."""
KEEP_KEYS = timedelta(days=7)
"""How long a repeated request is known as one, if nobody says."""


@dataclass
class Swept:
    """What a sweep did, and what is to be published for it."""

    effects: list[Effects] = field(default_factory=list)
    dispatches: list[Dispatch] = field(default_factory=list)
    ended: list[tuple[UUID, TurnEnd]] = field(default_factory=list)
    """Turns whose end nobody was told of."""
    failed: list[UUID] = field(default_factory=list)


def sweep(  # noqa: PLR0913  # all but one are named
    engine: Engine,
    *,
    dead_after: timedelta,
    rebuild: Callable[[UUID, int], NewMessage | None] = lambda *_: None,
    spare: bool = False,
    recovering: bool = True,
    queued: int = 0,
    keep_keys: timedelta = KEEP_KEYS,
    batch: int = 100,
    most: int = 50,
) -> Swept:
    """Recover chats of dead owners, expire parked ones, wake and ring for those who were not.

    In batches, so that locks are not held for long, and at most so many of them: what is left after
    that is the next sweep's. A chat that cannot be moved is passed over, and then reconciled.
    `rebuild` finds what readers had seen of a dead owner's answer, given the chat and its history's
    version; it is asked before any lock is held. `spare`: see `claims.dead_owners`.
    Not `recovering`: nobody is declared dead, for the database was away, and hearts unheard.
    `queued` is how many messages wait in the broker: no more are repeated than can be missing.
    `keep_keys` is for how long a repeated request is known as one.
    """
    swept = Swept()
    saved = _rebuilt(rebuild, claims.dead_leases(engine, dead_after=dead_after))

    def recover(tx: Session) -> int:
        found = claims.dead_owners(
            tx,
            dead_after=dead_after,
            leases=saved,
            spare=spare,
            limit=batch,
            skip=swept.failed,
        )
        for chat_id, lease_id in found:
            again = partial(machine.recover, tx, chat_id, lease_id, partial=saved.get(lease_id))
            _apart(tx, swept, chat_id, again)
        return len(found)

    expire = _moving(swept, claims.expired, machine.expire, batch)
    wake = _moving(swept, claims.waits_over, machine.wake, batch)

    def redispatch(tx: Session) -> int:
        missing = claims.due(tx) - queued - len(swept.dispatches) if queued else batch
        found = claims.redispatch(tx, limit=max(0, min(batch, missing)))
        swept.dispatches.extend(found)
        return len(found)

    purge = partial(claims.purge_keys, keep=keep_keys, limit=batch)
    for work in (recover, expire, wake, redispatch, purge)[0 if recovering else 1 :]:
        for _ in range(most):
            with transaction(engine) as tx:
                found = work(tx)
            if found < batch:
                break
    for chat_id in dict.fromkeys(swept.failed):
        with transaction(engine) as tx:
            _apart(tx, swept, chat_id, partial(machine.reconcile, tx, chat_id))
    with transaction(engine) as tx:
        swept.ended = claims.unannounced(tx)
        claims.bury_workers(tx, gone_after=GONE_AFTER)
    return swept


def _rebuilt(
    rebuild: Callable[[UUID, int], NewMessage | None], dead: Sequence[tuple[UUID, UUID, int]]
) -> dict[UUID, NewMessage | None]:
    """What dead owners had produced, by lease; nothing, where that cannot be found out in time."""
    found: dict[UUID, NewMessage | None] = {}
    end = time.monotonic() + REBUILD_SECONDS
    for chat_id, lease_id, version in dead:
        found[lease_id] = None
        if time.monotonic() < end:
            try:
                found[lease_id] = rebuild(chat_id, version)
            except Exception:
                log.exception("The partial answer of chat %s is lost: not to be rebuilt", chat_id)
    return found


def _moving(
    swept: Swept,
    find: Callable[..., list[UUID]],
    move: Callable[[Session, UUID], Effects],
    batch: int,
) -> Callable[[Session], int]:
    """The work of finding a batch of chats, and moving each."""

    def work(tx: Session) -> int:
        found = find(tx, limit=batch, skip=swept.failed)
        for chat_id in found:
            _apart(tx, swept, chat_id, partial(move, tx, chat_id))
        return len(found)

    return work


def _apart(tx: Session, swept: Swept, chat_id: UUID, move: Callable[[], Effects]) -> None:
    """Move one chat under a savepoint of its own."""
    try:
        with tx.begin_nested():
            swept.effects.append(move())
    except Stale:
        return  # it moved by itself meanwhile
    except DBAPIError as error:
        if error.connection_invalidated:
            raise  # nothing can be moved now
        log.exception("Could not sweep chat %s; the next sweep tries again", chat_id)
        swept.failed.append(chat_id)
    except Exception:
        log.exception("Could not sweep chat %s; the next sweep tries again", chat_id)
        swept.failed.append(chat_id)
