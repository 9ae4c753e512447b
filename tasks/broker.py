"""What has to be known of, and mended in, Celery 5.7's way to the broker."""

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import wraps
from typing import Any

from billiard import pool
from celery import bootsteps
from celery.concurrency.prefork import TaskPool
from celery.concurrency.thread import ApplyResult
from celery.concurrency.thread import TaskPool as ThreadPool
from celery.utils import log as celery_log
from celery.worker.consumer.events import Events
from kombu.asynchronous import get_event_loop
from kombu.common import ignore_errors
from kombu.transport import virtual
from kombu.transport.redis import Channel, QoS
from kombu.utils.json import dumps
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import RedisError

from rejoinder.batches import Command
from tasks import app, stopping

log = logging.getLogger(__name__)

STEPS = "rejoinder.steps"
EVENTS_SECONDS = 0.2
MOST_EVENTS = 1000
"""That are gathered: beyond that, whoever adds one sends them."""
NOTE_SECONDS = 0.1
READ_SECONDS = 3.0
"""How long a child that leaves waits until its last report is read."""


def waiting_steps() -> int:
    """How many step messages wait in the broker; 0 if it cannot say."""
    try:
        with app.connection_or_acquire() as connection:
            channel = connection.default_channel
            if isinstance(channel, Channel):
                # To kombu 5.7 a queue under a prefix does not exist; and an empty one never does.
                return int(channel._size(STEPS))  # type: ignore[no-untyped-call]  # noqa: SLF001
            return int(channel.queue_declare(queue=STEPS, passive=True).message_count)
    except Exception as error:  # noqa: BLE001  # every transport has errors of its own
        log.info("The length of %s is not known: %s", STEPS, error)
        return 0


def survive_lost_connections() -> None:
    """Let a worker outlive the loss of its connection to Redis while it holds a message.

    kombu 5.7: after the loss, Celery collects the connection (its transport then has no client) and
    closes it, and the channel restores its unacknowledged messages through that client. The
    AttributeError is none of the errors that Celery expects there, so the worker exits. The same
    happens to a late acknowledgement on the dead channel. Say what it is: a lost connection.
    """
    original = Channel._connparams  # noqa: SLF001

    def parameters(self: Channel, *args: object, **options: object) -> object:
        if getattr(self.connection, "client", None) is None:
            raise LostConnection("This channel's connection is gone")
        return original(self, *args, **options)  # type: ignore[no-untyped-call]

    Channel._connparams = parameters  # type: ignore[method-assign]  # noqa: SLF001


def reuse_clients() -> None:
    """Let a channel keep its Redis client.

    kombu 5.7 makes a new one for every message that is sent, acknowledged or told of in an event:
    6 % of what a worker did under load. Clients of one pool of connections are all the same.
    """
    create = Channel._create_client  # noqa: SLF001

    def client(self: Channel, asynchronous: bool = False) -> object:  # noqa: FBT001, FBT002
        if asynchronous:
            return create(self, asynchronous)  # type: ignore[no-untyped-call]
        kept = self.__dict__.get("_kept_client")
        if kept is None or kept.connection_pool is not self.pool:
            kept = self.__dict__["_kept_client"] = create(self)  # type: ignore[no-untyped-call]
        return kept

    Channel._create_client = client  # type: ignore[method-assign]  # noqa: SLF001


class _HeldBack(threading.local):
    messages: list[Command] | None = None


_held_back = _HeldBack()


@contextmanager
def held_back() -> Iterator[list[Command]]:
    """What this thread gives to the broker meanwhile, as commands for whoever sends them."""
    messages: list[Command] = []
    _held_back.messages = messages
    try:
        yield messages
    finally:
        _held_back.messages = None


def hold_back_messages() -> None:
    """Let a message go out together with what is told to readers (see `dispatch.py`)."""
    put = Channel._put  # noqa: SLF001

    def hold(self: Channel, queue: str, message: Any, **options: Any) -> None:
        if _held_back.messages is None or queue in self._expires:
            put(self, queue, message, **options)  # type: ignore[no-untyped-call]
            return
        urgency = self._get_message_priority(message, reverse=False)  # type: ignore[no-untyped-call]
        key = f"{self.global_keyprefix}{self._q_for_pri(queue, urgency)}"  # type: ignore[no-untyped-call]
        _held_back.messages.append(("LPUSH", key, dumps(message)))  # type: ignore[no-untyped-call]

    Channel._put = hold  # type: ignore[method-assign]  # noqa: SLF001


def note_late() -> None:
    """Let a message's task begin before it is noted in Redis that the message is here.

    kombu 5.7 notes it first: a round trip, a millisecond in a worker that was idle, before anybody
    begins, and takes the note back once it is acknowledged, which is when the task begins (see
    `celeryconfig.py`). A note is for a worker that dies before that. So only what is not
    acknowledged in a moment is noted; whoever gives a message back has it noted first.
    """
    note, acknowledge, read = QoS.append, QoS.ack, Channel._brpop_read  # noqa: SLF001

    def append(self: QoS, message: Any, delivery_tag: Any) -> None:
        hub = get_event_loop() if self.channel.__dict__.get("_delivers") else None
        if hub is None:
            note(self, message, delivery_tag)  # type: ignore[no-untyped-call]
            return
        virtual.QoS.append(self, message, delivery_tag)  # type: ignore[no-untyped-call]
        self.__dict__.setdefault("_unnoted", {})[delivery_tag] = message
        hub.call_later(NOTE_SECONDS, note_what_is_left, self)  # type: ignore[no-untyped-call]

    def deliver(self: Channel, **options: Any) -> Any:
        self.__dict__["_delivers"] = True
        try:
            return read(self, **options)  # type: ignore[no-untyped-call]
        finally:
            self.__dict__["_delivers"] = False

    def ack(self: QoS, delivery_tag: Any) -> None:
        if self.__dict__.get("_unnoted", {}).pop(delivery_tag, None) is None:
            acknowledge(self, delivery_tag)  # type: ignore[no-untyped-call]
        else:
            virtual.QoS.ack(self, delivery_tag)  # type: ignore[no-untyped-call]

    def note_all(self: QoS) -> None:
        unnoted = self.__dict__.get("_unnoted", {})
        while unnoted:
            delivery_tag, message = unnoted.popitem()
            note(self, message, delivery_tag)  # type: ignore[no-untyped-call]

    def note_what_is_left(self: QoS) -> None:
        try:
            note_all(self)
        except (RedisError, OSError) as error:  # the loop finds out by itself, if it is its own
            log.info("A message could not be noted as taken: %s", error)

    QoS.append, QoS.ack = append, ack  # type: ignore[method-assign]
    QoS.reject = _after(note_all, QoS.reject)  # type: ignore[method-assign]
    QoS.restore_unacked = _after(note_all, QoS.restore_unacked)  # type: ignore[method-assign]
    Channel._brpop_read = deliver  # type: ignore[method-assign]  # noqa: SLF001


def _after(first: Callable[[Any], None], act: Callable[..., Any]) -> Callable[..., Any]:
    """A method that does something else first."""

    @wraps(act)
    def then(self: object, *args: Any, **options: Any) -> Any:
        first(self)
        return act(self, *args, **options)

    return then


class GatheredEvents(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery has no types
    """Sends task events, for Flower and others who watch, a few times a second.

    Celery 5.7 publishes them in every round of the main loop, and each publication takes longer
    than many a step's own work there. Nobody who watches sees the difference.
    """

    requires = (Events,)

    def register_with_event_loop(self, consumer: Any, hub: Any) -> None:
        """Begin, each time the loop does."""
        dispatcher = consumer.event_dispatcher
        if dispatcher is not None:
            dispatcher.on_send_buffered = None
            dispatcher.buffer_limit = MOST_EVENTS
            hub.timer.call_repeatedly(EVENTS_SECONDS, self.flush, (consumer,))

    def flush(self, consumer: Any) -> None:
        """Send what there is."""
        if consumer.event_dispatcher is not None:
            consumer.event_dispatcher.flush()

    def stop(self, consumer: Any) -> None:
        """Send the rest, while there is a connection."""
        ignore_errors(consumer, self.flush, consumer)  # type: ignore[no-untyped-call]


def survive_cold_shutdowns() -> None:
    """Let a worker end well after a cold shutdown, though a message comes when its pool is gone.

    Celery 5.7 asks a prefork pool for its size before it takes a message (on Redis, with
    `worker_disable_prefetch`), and hands a message that was under way to a threads pool that takes
    none any more. Both errors end the worker as "unrecoverable". A pool that is gone has no places,
    and what is given to it is not begun: the message is not acknowledged, and goes back.
    """
    size: property = TaskPool.num_processes
    get = size.fget

    def places(self: TaskPool) -> int:
        return int(get(self)) if self._pool is not None and get is not None else 0

    TaskPool.num_processes = property(places)
    apply = ThreadPool.on_apply

    def on_apply(self: ThreadPool, *args: object, **options: object) -> object:
        try:
            return apply(self, *args, **options)
        except RuntimeError:
            if not stopping.this.asked:
                raise
            return ApplyResult(Future())

    ThreadPool.on_apply = on_apply


def stop_no_pool_in_a_signal_handler() -> None:
    """Let a cold shutdown end, whatever the main thread was doing when it came.

    Celery 5.7 stops the pool within the signal's handler, and that waits for what is at work. If
    the main thread was in the middle of a line of the log, it holds the log's lock, for which
    threads wait in turn; if it was handing a task to the pool, it holds the executor's lock, or a
    prefork child waits for the rest of the task: the worker hangs until it is killed. So the
    handler leaves the pool alone; the main thread stops it, once it is out of it (`terminate`).
    """
    wait_for_children = TaskPool.on_stop

    def on_stop(self: ThreadPool) -> None:
        if not celery_log._in_sighandler:  # noqa: SLF001
            self.executor.shutdown(wait=True, cancel_futures=True)

    def on_stop_of_children(self: TaskPool) -> None:
        if not celery_log._in_sighandler:  # noqa: SLF001
            wait_for_children(self)

    ThreadPool.on_stop = ThreadPool.on_terminate = on_stop
    TaskPool.on_stop = TaskPool.on_terminate = on_stop_of_children


def wait_for_no_reader() -> None:
    """Let a prefork child leave, though its last report is not read.

    On a warm shutdown Celery 5.7 forgets a task that was handed to a child and not heard of since;
    so nobody reads that it has ended. The child (billiard 4.3) waits for that half a minute, and
    the worker for the child: longer than a deploy waits. The report is for the log: the message is
    acknowledged or given back, and the result is stored, without it.
    """
    pause = pool.GUARANTEE_MESSAGE_CONSUMPTION_RETRY_INTERVAL
    pool.GUARANTEE_MESSAGE_CONSUMPTION_RETRY_LIMIT = int(READ_SECONDS / pause)
