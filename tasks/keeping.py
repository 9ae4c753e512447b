"""Chats that a worker keeps for its own next step, and how it lets go of one after all.

A step that ends with more to do claims the chat again in the same statement (`commit`), if this
process has a place for the next step. Until that begins, a moment later, the claim waits here under
the step's id. If it does not come to that (the worker is going, is full after all, or the step was
revoked), the chat is handed back like any other. What is lost in here is found by the heartbeat: a
lease without a step.
"""

import logging
import time
from contextlib import suppress
from uuid import UUID

from models import machine
from models.claims import Claim
from models.engine import transaction
from rejoinder.core.effects import Dispatch
from rejoinder.core.errors import Stale
from tasks.db_retry import SECONDS_WHEN_GOING, retrying
from tasks.runtime import Runtime, existing

log = logging.getLogger(__name__)

_letting_go: list[UUID] = []
"""Steps whose chats are being handed back."""


def keep(runtime: Runtime, claim: Claim) -> None:
    """Have it ready for its step."""
    runtime.kept[claim.step_id] = claim


def take(runtime: Runtime, step_id: UUID) -> Claim | None:
    """The chat that was kept for this step, once."""
    return runtime.kept.pop(step_id, None)


def ring_elsewhere(to: Dispatch) -> None:
    """Let anybody take a step that this worker had rung for."""
    from tasks.dispatch import dispatch  # noqa: PLC0415  # it rings here first

    if not hand_back(to.step_id):
        dispatch(to)


def hand_back(step_id: UUID) -> bool:
    """Let go of the chat that was kept for this step; False if none was."""
    runtime = existing()
    _letting_go.append(step_id)
    try:
        claim = take(runtime, step_id) if runtime is not None else None
        if runtime is None or claim is None:
            return False
        _release(runtime, claim)
        return True
    finally:
        _letting_go.remove(step_id)


def hand_back_all(runtime: Runtime) -> None:
    """Let go of everything: no step begins any more. Returns once all is handed back."""
    for step_id in [*runtime.kept]:
        try:
            hand_back(step_id)
        except Exception:
            log.exception("A chat could not be handed back; the sweep will find it")
    end = time.monotonic() + SECONDS_WHEN_GOING
    while _letting_go and time.monotonic() < end:  # others hand back, too
        time.sleep(0.02)


@retrying
def _release(runtime: Runtime, claim: Claim) -> None:
    from tasks.dispatch import publish  # noqa: PLC0415  # it rings here first

    with suppress(Stale):
        with transaction(runtime.engine) as tx:
            effects = machine.release(tx, claim.fence)
        publish(runtime, effects)
