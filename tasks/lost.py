"""What is done from outside a step, for a chat whose step was revoked or lost.

All of it is an errand for the thread of `stopping.py`: the news comes in Celery's main loop or in a
signal handler, where nobody may wait for a database. Each is a transition like any other, so it
does not matter how many workers hear the same news.
"""

import logging
from collections.abc import Iterable
from contextlib import suppress
from uuid import UUID

from models import claims, machine
from models.engine import transaction
from rejoinder.core.effects import Dispatch
from rejoinder.core.errors import Rejected, Stale
from rejoinder.core.messages import NewMessage
from tasks import stopping
from tasks.db_retry import retrying
from tasks.dispatch import dispatch, publish
from tasks.live import what_was_written
from tasks.runtime import Runtime, current

log = logging.getLogger(__name__)


def stop_revoked(task_ids: Iterable[object]) -> None:
    """Interrupt the turns that these ids stand for: of a step, or a turn's own."""
    ids = [found for task_id in task_ids if (found := _uuid(task_id)) is not None]
    if ids:
        stopping.this.errand(lambda: _stop(current(), ids))


def recover_step(task_id: object) -> None:
    """Let a chat go on whose step is gone with its process."""
    step_id = _uuid(task_id)
    if step_id is not None:
        stopping.this.errand(lambda: _recover(current(), step_id))


@retrying
def _stop(runtime: Runtime, ids: list[UUID]) -> None:
    turns = claims.by_turn(runtime.engine, ids)
    turns += [
        (step.chat_id, step.turn_id, None)
        for step in claims.by_step(runtime.engine, ids)
        if step.turn_id is not None
    ]
    for chat_id, turn_id, queued_id in turns:
        if queued_id is not None:
            with suppress(Rejected):  # it has begun meanwhile
                with transaction(runtime.engine) as tx:
                    effects = machine.delete_queued(tx, chat_id, queued_id)
                publish(runtime, effects)
                continue
        with transaction(runtime.engine) as tx:
            all_effects = machine.interrupt_tree(tx, chat_id, turn_id=turn_id)
        for effects in all_effects:
            publish(runtime, effects)


@retrying
def _recover(runtime: Runtime, step_id: UUID) -> None:
    for step in claims.by_step(runtime.engine, [step_id]):
        if step.lease_id is None:
            if step.turn_id is not None:  # gone before it had the chat: the message was lost
                dispatch(Dispatch(step.chat_id, step.turn_id, step_id))
            continue
        log.warning("Chat %s: the process of its step is gone", step.chat_id)
        with suppress(Stale):
            partial = rebuild(runtime, step.chat_id, step.history_version)
            with transaction(runtime.engine) as tx:
                effects = machine.recover(tx, step.chat_id, step.lease_id, partial=partial)
            publish(runtime, effects)


def rebuild(runtime: Runtime, chat_id: UUID, history_version: int) -> NewMessage | None:
    """What the chat's dead owner had written, as far as readers have seen it."""
    prefix = runtime.settings.redis_prefix
    return what_was_written(runtime.redis, prefix, chat_id, history_version)


def _uuid(value: object) -> UUID | None:
    try:
        return UUID(str(value))
    except ValueError:
        return None
