"""The sweep, on beat and at every worker's start."""

from celery.signals import worker_ready

from models.sweep import sweep
from tasks import app
from tasks.dispatch import announce, dispatch_all, publish
from tasks.requests import DiscreetRequest
from tasks.runtime import current


@app.task(name="rejoinder.sweep", ignore_result=True, Request=DiscreetRequest)
def sweep_chats() -> None:
    """Move whoever cannot move by itself."""
    runtime = current()
    swept = sweep(runtime.engine, dead_after=runtime.dead_after)
    for effects in swept.effects:
        publish(runtime, effects)
    dispatch_all(swept.dispatches)
    announce(runtime, swept.ended)


@worker_ready.connect
def _sweep_at_start(**_: object) -> None:
    app.send_task("rejoinder.sweep", ignore_result=True, expires=60)
