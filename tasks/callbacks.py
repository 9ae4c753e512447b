"""What other apps' tasks answer: the callback of a task that we sent, and the look for lost ones.

A callback is a wake-up with a result in it. It may come twice, late, or never: `machine.wake` takes
it once, for the very call it was sent for; and the sweep looks into the result backend for those
that do not come. Sending is in `dispatch.py`, the tool in `rejoinder/tools/celery_tool.py`.
"""

import logging
import threading
from typing import Any
from uuid import UUID

import redis
from celery import states
from celery.exceptions import Reject
from kombu.exceptions import EncodeError
from sqlalchemy.exc import SQLAlchemyError

from models import outside
from models.engine import transaction
from models.tables import Chat
from rejoinder.core.effects import Send
from rejoinder.core.errors import Rejected
from rejoinder.core.parts import Json
from rejoinder.providers import provider_for
from rejoinder.tools import cap, content_of, result_limit
from rejoinder.tools.cap import readable
from rejoinder.tools.results import ResultError
from tasks import app
from tasks.db_retry import is_transient, retrying
from tasks.dispatch import ANSWERED, NOT_SENT, answer, send
from tasks.requests import COMMAND
from tasks.runtime import Runtime, current

log = logging.getLogger(__name__)

REVOKED = "The task was revoked before it ran."
UNTOLD = "The task failed. Its app does not say why where we could read it."
NOT_TOLD = "The task ran, but its result could not be told as JSON"
UNSURE = (
    " This was the transport, or the end of its process: the task itself may have done its work."
    " Check before you repeat it."
)
_TRANSPORT = ("redis.", "kombu.", "amqp.", "billiard.")
"""Celery counts a task as failed, too, whose end it could not tell, or whose process was killed."""

_seen_up_to: int | None = None
_lock = threading.Lock()


# Bound: a worker that knows this task (ours) would else call it as a function when one fails.
@app.task(bind=True, name=ANSWERED, ignore_result=True, typing=False, **COMMAND)
def task_answered(  # noqa: PLR0913  # whose answer it is
    self: Any,
    value: Any,
    *,
    chat_id: str,
    call_id: str,
    external_id: str,
    failed: bool = False,
) -> None:
    """Take what another app's task returned; of one that failed, only the id comes."""
    del self
    call = Send(UUID(chat_id), call_id, "", external_id, {}, again=False)
    state, result = _failure(external_id) if failed else (states.SUCCESS, value)
    try:
        _answer(current(), call, state, result)
    except SQLAlchemyError as error:
        if not is_transient(error):
            raise
        raise Reject(error, requeue=True) from None  # it is the only copy of the answer


def look_for_answers(runtime: Runtime) -> None:
    """Look after calls that have waited a while: their callback, or their message, may be lost."""
    global _seen_up_to  # one per process
    if not _lock.acquire(blocking=False):
        return
    try:
        with transaction(runtime.engine) as tx:
            calls, _seen_up_to = outside.waiting(tx, _seen_up_to)
        for call in calls:
            _look(runtime, call)
    except (SQLAlchemyError, redis.RedisError, OSError) as error:
        if isinstance(error, SQLAlchemyError) and not is_transient(error):
            raise
        log.warning("A server is away; the next sweep looks for answers again: %s", error)
    finally:
        _lock.release()


def _look(runtime: Runtime, call: outside.Outside) -> None:
    state, value = _stored(call.send.external_id)
    if state in states.READY_STATES:
        _answer(runtime, call.send, state, value)
    elif call.sent:
        return  # it takes its time
    elif call.send.again:
        send(runtime, call.send)
    else:
        _tell(runtime, call.send, NOT_SENT, is_error=True)  # whoever was to send it died


def _failure(external_id: str) -> tuple[str, Any]:
    """Why a task failed, if that can be read."""
    try:
        state, result = _stored(external_id)
    except (redis.RedisError, OSError) as error:
        log.warning("Why task %s failed cannot be read: %s", external_id, error)
        return states.FAILURE, None
    return (state, result) if state in states.EXCEPTION_STATES else (states.FAILURE, None)


def _stored(external_id: str) -> tuple[str, Any]:
    """What the result backend knows: a state, and the result or the exception."""
    try:
        meta = app.backend.get_task_meta(external_id, cache=False)
    except (redis.RedisError, OSError):
        raise
    except Exception:  # written by an app whose format we do not read
        log.warning("The result of task %s cannot be read", external_id, exc_info=True)
        return states.PENDING, None
    return meta["status"], meta.get("result")


def _answer(runtime: Runtime, call: Send, state: str, value: Any) -> None:
    content, is_error = told(state, value, _limit(runtime, call.chat_id))
    _tell(runtime, call, content, is_error=is_error)


def _tell(runtime: Runtime, call: Send, content: Json, *, is_error: bool) -> None:
    try:
        answer(runtime, call, content, is_error=is_error)
    except Rejected as refusal:
        log.info("Nobody waits for the answer of task %s: %s", call.external_id, refusal)


def told(state: str, value: Any, limit: int) -> tuple[Json, bool]:
    """The content of the result, and whether it is an error."""
    if state == states.SUCCESS:
        try:
            return content_of(value, limit), False
        except ResultError as error:
            return str(error), True
    if state == states.REVOKED:
        return REVOKED, True
    if not isinstance(value, BaseException):
        return UNTOLD, True
    kind = type(value).__name__
    if kind == EncodeError.__name__:
        return cap(readable(f"{NOT_TOLD}: {value}"), limit), True
    unsure = UNSURE if type(value).__module__.startswith(_TRANSPORT) else ""
    return cap(readable(f"The task failed with {kind}: {value}"), limit) + unsure, True


@retrying
def _limit(runtime: Runtime, chat_id: UUID) -> int:
    with transaction(runtime.engine) as tx:
        chat = tx.get(Chat, chat_id)
    try:
        provider, model = provider_for((chat and chat.model) or runtime.settings.model)
    except Rejected:
        return result_limit(None)  # a model that only another release knows
    return result_limit(provider.profile(model).context_limit)
