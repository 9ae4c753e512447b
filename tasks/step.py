"""A step: one Celery task that takes a chat one model call, and the tools it asked for, further.

The message only says which chat to look at. Claim, load, `decide`, do it with no transaction open,
commit under the fence. However it ends, the ladder in `work` decides the next status, in the order
of precedence in ARCHITECTURE.md. What to do: `generate.py`, `use_tools.py`, `compact.py`.
"""

import logging
import time
from typing import Any, assert_never
from uuid import UUID

from sqlalchemy.exc import SQLAlchemyError

from models import machine, snapshot
from rejoinder.core.cancellation import Cancelled
from rejoinder.core.decide import (
    Action,
    Compact,
    Finish,
    Generate,
    Park,
    RunTools,
    StopAtLimit,
    TooLong,
    decide,
)
from rejoinder.core.effects import Cause
from rejoinder.core.errors import Stale, StopRequested
from rejoinder.core.failures import FailureKind
from rejoinder.core.limits import MAX_CLAIMS_WITHOUT_PROGRESS
from rejoinder.core.messages import Failure, NewMessage, Role, Visibility
from rejoinder.core.parts import Text
from rejoinder.providers.errors import ProviderError
from rejoinder.retry import delay, may_retry, retry_state
from tasks import app, stopping
from tasks.claiming import claiming, ring_again, step_of, turn_of
from tasks.compact import make_room, policy
from tasks.db_retry import is_transient
from tasks.generate import generate
from tasks.held import Held
from tasks.local_dispatch import STEP
from tasks.requests import StepRequest
from tasks.runtime import Runtime, current
from tasks.timeline import Timeline
from tasks.use_tools import park, run_tools

log = logging.getLogger(__name__)

DEADLINE = Failure("timeout", "The step took too long and was stopped.", retryable=True)
NO_PROGRESS = Failure(
    FailureKind.NO_PROGRESS,
    f"Workers took this chat {MAX_CLAIMS_WITHOUT_PROGRESS} times in a row, and nothing came of it.",
    detail="What they produced could perhaps not be stored. The log has the details.",
    retryable=True,
)
BROKEN = Failure("generic", "Something went wrong inside Rejoinder. The log has the details.")


@app.task(bind=True, name=STEP, ignore_result=True, Request=StepRequest)
def step(self: Any, chat_id: str) -> None:
    """Take a chat one step further, if it is there to be taken."""
    if stopping.this.asked:
        ring_again(self.request, chat_id)
        return
    runtime = current()
    with runtime.turnstile.inside():
        take(self.request, runtime, UUID(chat_id))


def take(request: Any, runtime: Runtime, chat_id: UUID) -> None:
    """Take the chat, and work on it."""
    began = time.monotonic()
    with claiming(runtime, chat_id, step_of(request), turn_of(request)) as claim:
        if claim is None:
            return  # a repeated, late or early message: somebody else has it, or nobody should
        timeline = Timeline(time.monotonic() - began)
        if not claim.kept:
            for event in claim.events:
                told = {**event.data, "version": claim.snapshot_version}
                runtime.events.add(claim.fence.chat_id, event.kind, told, now=False)
        with runtime.running(claim.fence.chat_id, claim.fence.lease_id) as running:
            work(Held(runtime, claim, running.cancellation, timeline, request))


def work(held: Held) -> None:
    """Take the step; whatever comes of it, leave the chat in the right status."""
    try:
        try:
            _work_or_fail(held)
        except StopRequested:
            held.finish_interrupt()
    except Stale:
        log.info("Chat %s: the lease is gone; leaving", held.chat_id)
    except SQLAlchemyError as error:
        if not is_transient(error):
            raise
        held.leave()
        log.warning("Chat %s: the database cannot store it now; leaving: %s", held.chat_id, error)


def _work_or_fail(held: Held) -> None:
    try:
        _work(held)
    except (Stale, StopRequested):
        raise
    except Exception as error:
        if is_transient(error):
            raise
        log.exception("Chat %s: the step failed", held.chat_id)
        held.fail(BROKEN)


def _work(held: Held) -> None:
    """Do what there is to do; if that is cut short, write down why."""
    try:
        held.cancellation.raise_if_cancelled()
        if held.claims_since_progress > MAX_CLAIMS_WITHOUT_PROGRESS:
            held.give_up(NO_PROGRESS)
            return
        loaded = held.load()
        act(held, loaded, decide(loaded.snapshot, policy(held, loaded)))
    except Cancelled as stop:
        held.left = True
        end(held, stop.cause)
    except ProviderError as error:
        again_or_fail(held, error)


def act(held: Held, loaded: snapshot.Loaded, action: Action) -> None:
    """Carry out a decision."""
    match action:
        case Generate():
            generate(held, loaded)
        case RunTools(calls):
            run_tools(held, loaded, calls)
        case Park(waits_for):
            park(held, loaded, waits_for)
        case Finish():
            held.write(machine.finish_turn)
        case StopAtLimit(steps):
            words = f"Stopped after {steps} steps without an end. Send a message to go on."
            notice = NewMessage(Role.ASSISTANT, (Text(words),), Visibility.USER)
            held.write(machine.finish_turn, message=notice)
        case Compact() | TooLong():
            make_room(held, loaded, action)
        case _:
            assert_never(action)


def end(held: Held, cause: Cause) -> None:
    """Leave a cancelled step behind, by its cause."""
    match cause:
        case Cause.LEASE_LOST:
            return
        case Cause.INTERRUPT:
            held.finish_interrupt()
        case Cause.SHUTDOWN:
            held.write(
                machine.release,
                partial=held.partial,
                results=held.results,
                untouched=held.untouched,
            )
        case Cause.DEADLINE | Cause.TIMEOUT:
            again_or_fail(held, ProviderError(DEADLINE))
        case _:
            assert_never(cause)


def again_or_fail(held: Held, error: ProviderError) -> None:
    """Try again later, if that may help; the attempt and the moment are on the row."""
    held.tell("preview_reset", history_version=held.fence.history_version, attempt=held.attempt)
    if error.failure.retryable and may_retry(held.attempt):
        wait = delay(held.attempt, error.retry_after)
        held.write(
            machine.retry_later,
            delay_seconds=wait,
            retry_state=retry_state(error.failure, wait),
            results=held.results,
            untouched=held.untouched,
            lost=held.partial,
        )
    else:
        held.write(
            machine.fail,
            error.failure,
            results=held.results,
            untouched=held.untouched,
            lost=held.partial,
        )
