"""The sweep, on beat and at every worker's start; else by any worker's heartbeat."""

import logging
import threading
import time
from datetime import timedelta
from functools import partial

from celery.signals import worker_ready
from sqlalchemy.exc import SQLAlchemyError

from models import claims
from models.sweep import sweep
from tasks import app
from tasks.broker import waiting_steps
from tasks.callbacks import look_for_answers
from tasks.db_retry import is_transient
from tasks.dispatch import announce, dispatch_all, publish
from tasks.lost import rebuild
from tasks.requests import DiscreetRequest
from tasks.runtime import Runtime, current

log = logging.getLogger(__name__)

NOT_AGAIN_WITHIN = 0.4
"""Seconds. After an outage hundreds of sweeps wait in the queue, and one is enough. (A message that
expires would be no help: whether it has is judged by the worker's clock, which may be wrong.)"""

_last = -NOT_AGAIN_WITHIN
_lock = threading.Lock()


@app.task(name="rejoinder.sweep", ignore_result=True, Request=DiscreetRequest)
def sweep_chats() -> None:
    """Move whoever cannot move by itself."""
    if _is_time():
        sweep_once(current())


def sweep_once(runtime: Runtime) -> None:
    """Sweep, and publish what follows."""
    try:
        claims.begin_sweep(runtime.engine)
        swept = sweep(
            runtime.engine,
            dead_after=runtime.dead_after,
            rebuild=partial(rebuild, runtime),
            spare=True,
            recovering=runtime.heartbeat.may_judge,
            queued=waiting_steps(),
            keep_keys=timedelta(seconds=runtime.settings.keep_keys_seconds),
        )
    except SQLAlchemyError as error:
        if not is_transient(error):
            raise
        log.warning("The database went away during a sweep; the next one goes on: %s", error)
        return
    for effects in swept.effects:
        publish(runtime, effects)
    dispatch_all(swept.dispatches)
    announce(runtime, swept.ended)
    look_for_answers(runtime)


def _is_time() -> bool:
    global _last  # noqa: PLW0603  # one per process
    with _lock:
        now = time.monotonic()
        if now - _last < NOT_AGAIN_WITHIN:
            return False
        _last = now
        return True


@worker_ready.connect
def _sweep_at_start(**_: object) -> None:
    app.send_task("rejoinder.sweep", ignore_result=True)
