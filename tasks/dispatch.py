"""The only place that publishes: what a committed transition makes known.

Steps and other apps' tasks to the broker, events to the chat's readers, hints to the owner of a
lease, results of turns, wake-ups of parents. Always after the commit, and nothing here may fail the
caller: whatever is lost is found again by the sweep, or read from the rows.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

from celery import states

from models import claims, machine, trees
from models.engine import transaction
from rejoinder.core.effects import Dispatch, Effects, Send, TurnEnd
from rejoinder.core.errors import Stale
from rejoinder.core.messages import TurnState
from rejoinder.core.parts import Json, ToolResult
from rejoinder.discreet import shown
from rejoinder.results import failed, outcome
from rejoinder.tools import CeleryTool
from tasks import app, hints, local_dispatch, stopping
from tasks.db_retry import retrying
from tasks.local_dispatch import STEP
from tasks.runtime import Runtime, current
from tasks.timers import after

log = logging.getLogger(__name__)

ANSWERED = "rejoinder.task_answered"
CONTROL = "rejoinder.control"
NOT_SENT = (
    "The task could not be sent for certain: it may or may not have been taken. Check before you"
    " repeat it."
)
UNKNOWN_TOOL = "The task was not sent: the worker that was to send it does not know this tool."


def publish(
    runtime: Runtime, effects: Effects, *, by: Any = None, claim: claims.Claim | None = None
) -> None:
    """Make a committed transition known; first to whoever is to stop.

    `by` is the request of the step that it ends, if this worker may take the one that follows;
    `claim` is that one's, if the chat was claimed again with the commit.
    """
    for hint in effects.hints:
        if hint.worker_id == runtime.worker_id:
            runtime.cancel(hint.lease_id, hint.cause)
        else:
            _safely(hints.send, runtime.redis, runtime.settings.redis_prefix, hint)
    goes_on_here = by is not None and stopping.this.main is None
    now = not goes_on_here or effects.dispatch is None  # else it has more to tell in a moment
    for event in effects.events:
        payload = {**event.data, "version": effects.snapshot_version}
        _safely(runtime.events.add, effects.chat_id, event.kind, payload, now=now)
    if not goes_on_here:
        runtime.events.hurry()  # another process may tell what comes next
    announce(runtime, [(effects.chat_id, end) for end in effects.ended])
    for call in effects.sends:
        send(runtime, call)
    for external_id in effects.abandoned:
        _safely(app.control.revoke, external_id)
    if effects.dispatch is not None and not (
        by and local_dispatch.offer(effects.dispatch, claim, by)
    ):
        runtime.events.hurry()
        _safely(fall_back, effects.dispatch, claim)
    if effects.wake is not None:
        _safely(wake, runtime, effects.wake)


def fall_back(to: Dispatch, claim: claims.Claim | None) -> None:
    """Let any worker take a step that this one was to take itself."""
    if claim is None:
        dispatch(to)
    else:
        _release(current(), claim)


@retrying
def _release(runtime: Runtime, claim: claims.Claim) -> None:
    with suppress(Stale):
        with transaction(runtime.engine) as tx:
            effects = machine.release(tx, claim.fence)
        publish(runtime, effects)


def dispatch(to: Dispatch) -> None:
    """Ring for a step, at once or when it is due."""
    if to.delay_seconds > 0:
        after(to.delay_seconds, lambda: dispatch(replace(to, delay_seconds=0.0)))
        return
    _safely(
        app.send_task,
        STEP,
        kwargs={"chat_id": str(to.chat_id)},
        task_id=str(to.step_id),  # fresh for every step: Terminate must find the one that runs
        argsrepr="()",
        kwargsrepr="",  # the request makes its own
        ignore_result=True,
        stamped_headers=["turn_id"],
        turn_id=str(to.turn_id),
    )


def dispatch_all(many: Iterable[Dispatch]) -> None:
    """Ring for many."""
    for each in many:
        dispatch(each)


def wake(runtime: Runtime, chat_id: UUID) -> None:
    """Wake a parent whose child has come to rest, and those above: any of them may wait for it."""
    above: UUID | None = chat_id
    while above is not None:
        with transaction(runtime.engine) as tx:
            effects = machine.wake(tx, above)
            above = trees.parent_of(tx, above)
        publish(runtime, effects)


def send(runtime: Runtime, call: Send) -> None:
    """Hand a call to the other app. If that fails, the model is told, or the sweep tries again."""
    tool = runtime.tools.get(call.name)
    if not isinstance(tool, CeleryTool):
        if not call.again:  # else a sweep sends it, in a process that knows the tool
            _safely(answer, runtime, call, UNKNOWN_TOOL, is_error=True)
        return
    started = {"call_id": call.call_id, "name": call.name, "state": "started"}
    _safely(runtime.events.add, call.chat_id, "tool", started)
    runtime.events.hurry()  # whoever takes the answer tells that it is finished
    whose = {"chat_id": str(call.chat_id), "call_id": call.call_id, "external_id": call.external_id}
    if _safely(
        app.send_task,
        tool.task,
        kwargs=dict(call.arguments),
        task_id=call.external_id,
        queue=tool.queue,
        serializer="json",
        kwargsrepr=shown(call.arguments),  # no log and no Flower page tells what users say
        link=_callback(whose),
        link_error=_callback({**whose, "failed": True}),
    ):
        _safely(claims.sent, runtime.engine, call.chat_id, call.external_id)
    elif not call.again:
        _safely(answer, runtime, call, NOT_SENT, is_error=True)


def _callback(whose: Mapping[str, Any]) -> Any:  # a signature has no type
    # The other app's own serializer may be one that we do not accept.
    options = {"queue": CONTROL, "serializer": "json", "ignore_result": True}
    return app.signature(ANSWERED, kwargs=dict(whose), options=options)


@retrying
def answer(runtime: Runtime, call: Send, content: Json, *, is_error: bool) -> None:
    """Give another app's answer to the call that waits for it, if one still does."""
    result = ToolResult(call.call_id, content, is_error=is_error)
    with transaction(runtime.engine) as tx:
        effects = machine.wake(tx, call.chat_id, result, external_id=call.external_id)
    if effects.changed:
        done = {"call_id": call.call_id, "state": "finished", "is_error": is_error}
        _safely(runtime.events.add, call.chat_id, "tool", done)
    publish(runtime, effects)


def announce(runtime: Runtime, ends: Sequence[tuple[UUID, TurnEnd]]) -> None:
    """Store the results of turns that are over, and note that it was done."""
    stored = [end.turn_id for chat_id, end in ends if _safely(store_result, chat_id, end)]
    if stored:
        _safely(claims.announced, runtime.engine, stored)


def store_result(chat_id: UUID, end: TurnEnd) -> None:
    """Store the turn's Celery result: the answer, or why there is none."""
    if end.state is TurnState.FAILED:
        app.backend.store_result(str(end.turn_id), failed(chat_id, end), states.FAILURE)
    else:
        app.backend.store_result(str(end.turn_id), outcome(chat_id, end), states.SUCCESS)


def _safely(send: Callable[..., Any], *args: Any, **options: Any) -> bool:
    try:
        send(*args, **options)
    except Exception:
        log.exception("Could not publish; the sweep or a reader will find it in the rows")
        return False
    return True
