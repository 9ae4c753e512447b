"""Local dispatch: a worker takes the next step of a turn itself, without the way to the broker.

In the order in which it happens: a step that ends with more to do *offers* the next one. On
threads, the pool's thread finds the offer when its task is over, and *serves* that step, too. On
prefork, the child writes the offer to a pipe, and the main process reads it. Either way the step is
*delivered* to Celery as if the broker had brought it: the same request, events, and id to revoke.

On threads the chat may have been claimed again with the commit. That claim goes with its step: in
the offer, then in the thread while the step begins, which takes it. If the step did not take it (it
was revoked, the worker is full or is going), `serve` hands the chat back; that is the one place.

Whatever is not taken here falls back to the broker. So does every tenth step of a turn, so that
load evens out between workers. What is lost in here with its worker is found by the heartbeat and
the sweep, like any message. REJOINDER_FAST=off leaves everything to the broker.
"""

import json
import logging
import os
import select
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias
from uuid import UUID

from celery import bootsteps
from celery.worker import state
from celery.worker.consumer.tasks import Tasks
from kombu.message import Message
from kombu.serialization import dumps

from models.claims import Claim
from rejoinder.core.effects import Dispatch
from rejoinder.core.settings import Settings
from tasks import app, stopping
from tasks.broker import STEPS
from tasks.celery_patches.pools import PreforkPool, ThreadPool

log = logging.getLogger(__name__)

STEP = "rejoinder.step"
IN_A_ROW = "steps_in_a_row"
"""Header of a step's message: how many of its turn this worker has taken itself in a row."""
MOST_IN_A_ROW = 9

Task: TypeAlias = Callable[[], None]
FallBack: TypeAlias = Callable[[Dispatch, Claim | None], None]


@dataclass(frozen=True)
class Offer:
    """A step for this worker. The ids of the tasks before it are whatever their senders chose."""

    to: Dispatch
    parent_id: str
    root_id: str
    in_a_row: int
    claim: Claim | None = None


class Local:
    """What the processes of one worker share; see `this`."""

    def __init__(self, fall_back: FallBack, pipe: "Pipe | None") -> None:
        """`fall_back` lets any worker take the step; the pipe is prefork's."""
        self._fall_back = fall_back
        self.pipe = pipe
        self.consumer: Any = None
        """Celery's, in the main process, while it takes messages."""

    def has_room(self) -> bool:
        """Whether the worker would take another step from the broker now, too."""
        consumer = self.consumer
        taking = consumer.task_consumer if consumer is not None else None
        if taking is None or stopping.this.asked or not taking.consuming_from(STEPS):
            return False
        places = getattr(consumer.controller, "max_concurrency", None)
        return len(state.reserved_requests) < int(places or consumer.pool.num_processes)

    def fall_back(self, offer: Offer) -> None:
        """Hand the chat back, if it was claimed, and let any worker take the step."""
        try:
            self._fall_back(offer.to, offer.claim)
        except Exception:
            log.exception("A step could not be handed on; the sweep will find it")


this: Local | None = None


def start(worker: Any, fall_back: FallBack, settings: Settings) -> None:
    """Begin, before the worker makes its pool, if it takes steps and has a loop."""
    global this  # noqa: PLW0603  # one per worker
    this = None
    takes_steps = STEPS in app.amqp.queues.consume_from
    if not (settings.fast and takes_steps and worker.should_use_eventloop()):
        return
    if worker.pool_cls is ThreadPool:
        this = Local(fall_back, None)
        worker.pool_cls = ServingPool
    elif worker.pool_cls is PreforkPool:
        this = Local(fall_back, Pipe())


# -- a step offers the next one -------------------------------------------------------------------


def can_take(request: Any) -> bool:
    """Whether this very thread could take the step after this one, as it seems now."""
    return this is not None and _thread.serves and _may_offer(request) and this.has_room()


def offer(to: Dispatch, claim: Claim | None, request: Any) -> bool:
    """Offer a step to this worker, from the step of this request; False: fall back."""
    if this is None or to.delay_seconds > 0 or not _may_offer(request):
        return False
    root_id = str(request.root_id or request.id)
    made = Offer(to, str(request.id), root_id, _in_a_row(request) + 1, claim)
    if this.pipe is not None:
        return this.pipe.write(made)
    if not can_take(request) or _thread.offer is not None:
        return False
    _thread.offer = made
    return True


def _may_offer(request: Any) -> bool:
    return _in_a_row(request) < MOST_IN_A_ROW and not stopping.this.asked


def _in_a_row(request: Any) -> int:
    count = request.get(IN_A_ROW)
    return count if isinstance(count, int) else 0


# -- threads: the same thread takes it ------------------------------------------------------------


class _Thread(threading.local):
    serves = False
    """It is one of the pool's."""
    offer: Offer | None = None
    claim: Claim | None = None
    """For the step that begins."""
    receives = False
    received: Task | None = None


_thread = _Thread()


class ServingPool(ThreadPool):
    """Threads that go on with what their task has offered."""

    def submit(self, task: Task) -> "Future[None]":
        """Have a thread serve it: this one, if it just receives what it was offered."""
        if not _thread.receives:
            return super().submit(partial(serve, task))
        _thread.received = task
        return Future()


def serve(task: Task) -> None:
    """In a thread of the pool: do a task, then the step that it has offered, and so on."""
    _thread.serves, _thread.offer = True, None
    task()  # raises nothing (`pools.run`)
    while (made := _thread.offer) is not None and this is not None:
        _thread.offer, _thread.claim = None, made.claim
        received = _receive(this, made)
        if received is not None:
            received()
        if received is None or _thread.claim is not None:
            _thread.claim = None
            this.fall_back(made)


def _receive(local: Local, made: Offer) -> Task | None:
    """What Celery gives to the pool for it; None: it does not take it."""
    _thread.receives, _thread.received = True, None
    try:
        if local.has_room():
            deliver(local.consumer, made)
    except Exception:
        log.exception("A step could not be taken here")
    finally:
        _thread.receives = False
    return _thread.received


def take_claim(step_id: UUID) -> Claim | None:
    """The claim that came with this step, if one did. Whoever takes it has the chat."""
    claim = _thread.claim
    if claim is None or claim.step_id != step_id:
        return None
    _thread.claim = None
    return claim


# -- prefork: through the main process ------------------------------------------------------------


class Pipe:
    """Offers on their way from the children to the main process, a line each."""

    def __init__(self) -> None:
        """Before the pool forks."""
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        self._rest = b""

    def write(self, made: Offer) -> bool:
        """Write it as a whole; False if it is too long, the pipe is full, or nobody reads."""
        to = made.to
        ids = [str(to.chat_id), str(to.turn_id), str(to.step_id), made.parent_id, made.root_id]
        line = json.dumps([*ids, made.in_a_row]).encode() + b"\n"
        try:
            return len(line) <= select.PIPE_BUF and os.write(self._writing, line) == len(line)
        except OSError:
            return False

    def read(self) -> Iterator[Offer]:
        """What has come by now."""
        with suppress(BlockingIOError):
            while read := os.read(self._reading, 65536):
                *lines, self._rest = (self._rest + read).split(b"\n")
                for line in lines:
                    chat_id, turn_id, step_id, *rest = json.loads(line)
                    yield Offer(Dispatch(UUID(chat_id), UUID(turn_id), UUID(step_id)), *rest)

    def fileno(self) -> int:
        """For those who wait for something to read."""
        return self._reading

    def only_write(self) -> None:
        """In a child: if the main process is gone, writing fails."""
        os.close(self._reading)


class Receiving(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery has no types
    """Knows Celery's consumer while it takes messages, and reads the pipe in its loop."""

    requires = (Tasks,)

    def register_with_event_loop(self, consumer: Any, hub: Any) -> None:
        """Begin, each time the loop does."""
        if this is not None:
            this.consumer = consumer
            if this.pipe is not None:
                hub.add_reader(this.pipe, receive, this, this.pipe)

    def stop(self, _consumer: Any) -> None:
        """The broker is away, perhaps for long, or the worker goes."""
        if this is not None:
            this.consumer = None


def receive(local: Local, pipe: Pipe) -> None:
    """In the main loop: deliver what children have offered."""
    for made in pipe.read():
        try:
            if local.has_room():
                deliver(local.consumer, made)
                continue
        except Exception:
            log.exception("A step could not be taken here")
        stopping.this.errand(partial(local.fall_back, made))


def drain() -> None:
    """When the worker goes: let the broker have what its loop no longer reads."""
    if this is not None and this.pipe is not None:
        threading.Thread(target=_drain, args=(this, this.pipe), name="drain", daemon=True).start()


def _drain(local: Local, pipe: Pipe) -> None:
    while True:
        select.select([pipe], [], [])
        for made in pipe.read():
            local.fall_back(made)


# -- Celery gets it as if from the broker ---------------------------------------------------------


def deliver(consumer: Any, made: Offer) -> None:
    """Give a step's message to the worker."""
    to = made.to
    task = app.amqp.as_task_v2(
        str(to.step_id),
        STEP,
        kwargs={"chat_id": str(to.chat_id)},
        argsrepr="()",
        kwargsrepr="",
        ignore_result=True,
        parent_id=made.parent_id,
        root_id=made.root_id,
        origin=consumer.hostname,
        stamped_headers=["turn_id"],
        turn_id=str(to.turn_id),
    )
    content_type, content_encoding, body = dumps(task.body, serializer="json")  # type: ignore[no-untyped-call]
    message = Message(  # type: ignore[no-untyped-call]
        body=body,
        content_type=content_type,
        content_encoding=content_encoding,
        headers={**task.headers, IN_A_ROW: made.in_a_row},
        properties=task.properties,
        delivery_info={"exchange": "", "routing_key": STEPS},
    )
    reject = partial(_reject, made)
    consumer.strategies[STEP](message, None, _acknowledge, reject, consumer.on_task_message)


def _acknowledge(*_: object) -> None:
    """Nobody keeps it."""


def _reject(made: Offer, _log: object, _errors: object, requeue: bool = False) -> None:  # noqa: FBT001, FBT002
    if requeue and this is not None:
        stopping.this.errand(partial(this.fall_back, made))
