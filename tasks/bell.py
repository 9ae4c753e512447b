"""A worker's own doorbell: the next step of a turn, without the way through the broker.

A step that ends with more to do rings for the next one. If this very worker takes steps and has a
free place, the message need not leave it: it goes through a pipe to the main process, which takes
it as if the broker had brought it, with the same request, the same events and the same id to revoke
it by. The pipe is made before a pool forks, so it serves threads and children alike. On threads the
very thread that rings takes the next step when it is done with this one (`in_turn.py`).

Whenever that is not so (the worker is full, is going, or no longer takes steps), the broker gets
the message after all. So does every tenth step of a turn, so that load evens out between workers.
A message that is lost in here with its worker is like any other: the sweep sends it again.
"""

import logging
import os
import select
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias
from uuid import UUID

from celery import bootsteps
from celery.worker import state
from celery.worker.consumer.tasks import Tasks
from kombu.message import Message

from rejoinder.core.effects import Dispatch
from tasks import app, in_turn, stopping
from tasks.broker import STEPS

log = logging.getLogger(__name__)

Act: TypeAlias = Callable[[], None]
STEP = "rejoinder.step"
IN_A_ROW = "steps_in_a_row"
"""Header of a step's message: how many of its turn this worker has rung for itself in a row."""
MOST_IN_A_ROW = 9
_IDS = 5
_SIZE = 16 * _IDS + 1
"""Bytes of one ring: ids and a count. Far less than what a pipe takes, and gives, as a whole."""


@dataclass(frozen=True)
class Ring:
    """For a step, by the step before it."""

    to: Dispatch
    parent_id: UUID
    root_id: UUID
    in_a_row: int

    def pack(self) -> bytes:
        """As it goes through the pipe."""
        to = self.to
        ids = (to.chat_id, to.turn_id, to.step_id, self.parent_id, self.root_id)
        return b"".join(each.bytes for each in ids) + bytes([self.in_a_row])

    @classmethod
    def unpack(cls, packed: bytes) -> "Ring":
        """As it was."""
        chat_id, turn_id, step_id, parent_id, root_id = (
            UUID(bytes=packed[n * 16 : (n + 1) * 16]) for n in range(_IDS)
        )
        return cls(Dispatch(chat_id, turn_id, step_id), parent_id, root_id, packed[-1])


class Bell:
    """The pipe of one worker, in all its processes."""

    def __init__(self) -> None:
        """Make the pipe."""
        self.consumer: Any = None
        """Celery's, in the main process, while it listens."""
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)

    def ring(self, ring: Ring) -> bool:
        """Have the main process hear it; False if it cannot."""
        try:
            return os.write(self._writing, ring.pack()) == _SIZE
        except OSError:  # it is full, or nobody is there any more
            return False

    def rung(self) -> Iterator[Ring]:
        """What has come by now."""
        with suppress(BlockingIOError):
            while read := os.read(self._reading, 100 * _SIZE):
                for start in range(0, len(read), _SIZE):
                    yield Ring.unpack(read[start : start + _SIZE])

    def fileno(self) -> int:
        """For those who wait for somebody to ring."""
        return self._reading

    def only_ring(self) -> None:
        """Leave listening to the main process: if that is gone, ringing fails."""
        os.close(self._reading)


this: Bell | None = None


def make(*, heard: bool) -> None:
    """Make the worker's bell, before its pool begins, if there is a loop that hears it."""
    global this  # noqa: PLW0603  # one per worker
    if heard and STEPS in app.amqp.queues.consume_from:
        this = Bell()


def has_place(request: Any) -> bool:
    """Whether the step after this one can be taken by this very process, as it seems now."""
    return (
        _may_ring(request)
        and stopping.this.main is None  # else another child may get it
        and this is not None
        and this.consumer is not None
        and _has_room(this.consumer)
    )


def _may_ring(request: Any) -> bool:
    in_a_row = request.get(IN_A_ROW) or 0
    return this is not None and in_a_row < MOST_IN_A_ROW and not stopping.this.asked


def ring(to: Dispatch, request: Any) -> bool:
    """Ring in this worker, from the step of this request; False: ring elsewhere."""
    if this is None or to.delay_seconds > 0 or not _may_ring(request):
        return False
    in_a_row = (request.get(IN_A_ROW) or 0) + 1
    parent_id = UUID(request.id)
    try:
        root_id = UUID(request.root_id)
    except ValueError:  # another app's own idea of an id
        root_id = parent_id
    ringing = Ring(to, parent_id, root_id, in_a_row)
    take_it = partial(take, this.consumer, [ringing], _now)
    if has_place(request) and in_turn.leave(take_it):
        return True
    return this.ring(ringing)


class Listening(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery has no types
    """Takes what this worker's own steps ring for, in its main loop."""

    requires = (Tasks,)

    def register_with_event_loop(self, consumer: Any, hub: Any) -> None:
        """Begin, each time the loop does."""
        if this is not None:
            this.consumer = consumer
            hub.add_reader(this.fileno(), listen, consumer)

    def stop(self, _consumer: Any) -> None:
        """Keep no chat for a loop that is not there: the broker may be away for long."""
        if this is not None:
            this.consumer = None


def listen(consumer: Any) -> None:
    """Take what has come through the pipe."""
    if this is not None:
        take(consumer, this.rung(), stopping.this.errand)


def take(consumer: Any, rings: Iterable[Ring], hand_on: Callable[[Act], None]) -> None:
    """Take steps that were rung for, or hand them on to the broker."""
    for heard in rings:
        try:
            if not stopping.this.asked and _has_room(consumer):
                deliver(consumer, heard)
                continue
        except Exception:
            log.exception("A step could not be taken here; ringing elsewhere")
        hand_on(_elsewhere(heard.to))


def _has_room(consumer: Any) -> bool:
    """Whether the worker would take another step from the broker now, too."""
    places = getattr(consumer.controller, "max_concurrency", None) or consumer.pool.num_processes
    taking = consumer.task_consumer  # None once it is shut down
    takes = taking is not None and taking.consuming_from(STEPS)
    return takes and len(state.reserved_requests) < places


def deliver(consumer: Any, heard: Ring) -> None:
    """Give a step to the worker as the broker would."""
    to = heard.to
    made = app.amqp.as_task_v2(
        str(to.step_id),
        STEP,
        kwargs={"chat_id": str(to.chat_id)},
        argsrepr="()",
        kwargsrepr="",
        ignore_result=True,
        parent_id=str(heard.parent_id),
        root_id=str(heard.root_id),
        origin=consumer.hostname,
        stamped_headers=["turn_id"],
        turn_id=str(to.turn_id),
    )
    message = Message(  # type: ignore[no-untyped-call]
        body=made.body,  # as it is: nobody has to write or to read it
        headers={**made.headers, IN_A_ROW: heard.in_a_row},
        properties=made.properties,
        delivery_info={"exchange": "", "routing_key": STEPS},
    )
    message._decoded_cache = made.body  # noqa: SLF001

    def reject(_log: object, _errors: object, requeue: bool = False) -> None:  # noqa: FBT001, FBT002
        if requeue:
            stopping.this.errand(_elsewhere(to))

    consumer.strategies[STEP](message, None, _ack, reject, consumer.on_task_message)


def _ack(*_: object) -> None:
    """Nobody keeps it."""


def _elsewhere(to: Dispatch) -> Act:
    from tasks.keeping import ring_elsewhere  # noqa: PLC0415  # it rings here first

    return lambda: ring_elsewhere(to)


def hand_on() -> None:
    """When the worker goes, let the broker have what its loop no longer takes."""
    if this is not None:
        threading.Thread(target=_hand_on, args=(this,), name="bell", daemon=True).start()


def _hand_on(bell: Bell) -> None:
    while True:
        select.select([bell], [], [])
        for heard in bell.rung():
            _now(_elsewhere(heard.to))


def _now(hand_on: Act) -> None:
    try:
        hand_on()
    except Exception:
        log.exception("A step could not be handed on; the sweep will find it")
