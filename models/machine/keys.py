"""Idempotency keys: a repeated request gives the first one's answer and changes nothing."""

import hashlib
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from models.tables import IdempotencyKey
from models.types import as_json, plain
from rejoinder.core.errors import Rejected
from rejoinder.core.parts import Json


def take(  # noqa: PLR0913  # a request, and the ids it will get
    tx: Session, owner: str, key: str, request: Json, *, chat_id: UUID, turn_id: UUID
) -> IdempotencyKey | None:
    """Take the key for this request, or return what it was used for before.

    Unique by (owner, key); a second transaction with the same key waits here for the first.
    """
    if not key or len(key) > 255:  # noqa: PLR2004  # what other systems allow, and an index likes
        raise Rejected(
            "The idempotency key is empty or longer than 255 characters",
            "use a short unique string, e.g. a UUID",
        )
    canonical = as_json(request, sort_keys=True)
    fingerprint = hashlib.sha256(canonical.encode()).hexdigest()
    taken = tx.execute(
        insert(IdempotencyKey)
        .values(
            owner=owner,
            key=plain("The idempotency key", key),
            fingerprint=fingerprint,
            chat_id=chat_id,
            turn_id=turn_id,
        )
        .on_conflict_do_nothing()
        .returning(IdempotencyKey.key)
    ).one_or_none()
    if taken is not None:
        return None
    found = tx.scalars(
        select(IdempotencyKey).where(IdempotencyKey.owner == owner, IdempotencyKey.key == key)
    ).one()
    if found.fingerprint != fingerprint:
        raise Rejected(
            f"The idempotency key {key!r} was used for a different request",
            "repeat the same request, or use a new key",
        )
    return found


def used(tx: Session, owner: str, key: str) -> IdempotencyKey | None:
    """What this key was used for before, if it was."""
    return tx.get(IdempotencyKey, (owner, key))
