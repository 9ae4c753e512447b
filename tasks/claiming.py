"""Taking a chat, or leaving it to others: what comes before a step."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from models import claims
from rejoinder.core.effects import Dispatch
from tasks.dispatch import dispatch
from tasks.patience import patiently
from tasks.runtime import Runtime

log = logging.getLogger(__name__)


@contextmanager
def claiming(runtime: Runtime, chat_id: UUID, step_id: UUID) -> Iterator[claims.Claim | None]:
    """Claim the chat for a step, or give None.

    A chat that took several workers down is suspect; a process runs one of those at a time. One
    that is left for this reason is rung for again by the sweep.
    """
    may_suspect = runtime.suspects.acquire(blocking=False)
    try:
        claim = _claim(runtime, chat_id, step_id, suspects=may_suspect)
        if may_suspect and not (claim and claim.suspect):
            runtime.suspects.release()
            may_suspect = False
        yield claim
    finally:
        if may_suspect:
            runtime.suspects.release()


@patiently
def _claim(
    runtime: Runtime, chat_id: UUID, step_id: UUID, *, suspects: bool
) -> claims.Claim | None:
    return claims.claim(
        runtime.engine,
        chat_id,
        runtime.worker_id,
        dead_after=runtime.dead_after,
        step_id=step_id,
        suspects=suspects,
    )


def ring_again(request: Any, chat_id: str) -> None:
    """Pass a message on that came when this worker was going: another one is to hear it."""
    turn_id = (request.stamps or {}).get("turn_id")
    if isinstance(turn_id, list | tuple):
        turn_id = turn_id[0] if turn_id else None
    if turn_id is None:
        return  # not from us; if the chat is to run, the sweep rings
    dispatch(Dispatch(UUID(chat_id), UUID(turn_id), UUID(request.id)))
