"""Idempotency keys: a request that comes again gets the first one's answer and changes nothing.

The key is taken before the transition and kept with its receipt, all in one transaction: a second
delivery that comes at the same time waits for the first one's commit. A refusal keeps nothing: the
request may be repeated when it fits. Purged by the sweep after a while (`claims.purge_keys`).
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from sqlalchemy import select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from models.tables import Chat, IdempotencyKey
from models.types import as_json, plain
from rejoinder.core.effects import Effects
from rejoinder.core.errors import Rejected
from rejoinder.core.limits import MOST_KEY
from rejoinder.core.parts import Json
from rejoinder.core.state import Status

NOBODY = UUID(int=0)
"""Stands for a chat that is yet to be created; whether it is there is checked at the commit."""

Done = Effects | tuple[Effects, ...]


def once(
    tx: Session, owner: str, key: str, request: Json, act: Callable[[], Done]
) -> tuple[Effects, ...]:
    """Do what is asked for, or give what it gave the first time, with nothing to publish.

    Unique by (owner, key); a second transaction with the same key waits here for the first.
    """
    if not key or len(key) > MOST_KEY:
        raise Rejected(
            f"The idempotency key is empty or longer than {MOST_KEY} characters",
            "use a short unique string, e.g. a UUID",
        )
    canonical = as_json(request, sort_keys=True)
    fingerprint = hashlib.sha256(canonical.encode()).hexdigest()
    plain("The owner", owner)
    plain("The idempotency key", key)
    taken = tx.execute(
        insert(IdempotencyKey)
        .values(owner=owner, key=key, fingerprint=fingerprint, chat_id=NOBODY)
        .on_conflict_do_nothing()
        .returning(IdempotencyKey.key)
    ).one_or_none()
    this = IdempotencyKey.owner == owner, IdempotencyKey.key == key
    if taken is None:
        found = tx.scalars(select(IdempotencyKey).where(*this)).one()
        if found.fingerprint != fingerprint:
            raise Rejected(
                f"The idempotency key {key!r} was used for a different request",
                "repeat the same request, or use a new key",
            )
        return (_as_before(found.receipt or {}),)
    done = act()
    done = done if isinstance(done, tuple) else (done,)
    tx.execute(
        update(IdempotencyKey)
        .where(*this)
        .values(chat_id=done[0].chat_id, turn_id=done[0].turn_id, receipt=receipt(done[0]))
        .execution_options(synchronize_session=False)
    )
    return done


def receipt(effects: Effects) -> dict[str, Json]:
    """What the caller of a transition gets."""
    return {
        "chat_id": str(effects.chat_id),
        "status": str(effects.status),
        "turn_id": str(effects.turn_id) if effects.turn_id else None,
        "message_ids": list(effects.message_ids),
        "queued_id": effects.queued_id,
        "changed": effects.changed,
        "version": effects.snapshot_version,
    }


def owner_of(tx: Session, chat_id: UUID) -> str:
    """Whose keys a request to this chat uses."""
    owner = tx.scalars(select(Chat.owner).where(Chat.id == chat_id)).one_or_none()
    if owner is None:
        raise Rejected(f"There is no chat {chat_id}", "check its id")
    return owner


def _as_before(first: Mapping[str, Any]) -> Effects:
    return Effects(
        chat_id=UUID(first["chat_id"]),
        status=Status(first["status"]),
        snapshot_version=first["version"],
        history_version=0,
        queue_version=0,
        changed=first["changed"],
        turn_id=UUID(first["turn_id"]) if first["turn_id"] else None,
        message_ids=tuple(first["message_ids"]),
        queued_id=first["queued_id"],
    )
