"""What one worker process has: engine, Redis, event loop, provider clients, a heartbeat.

Made on first use in each process and never inherited across a fork. Pool threads run their step's
asynchronous part on the one event loop here, so that a process has one provider client, however
many chats it runs. `heartbeat.py` keeps this process' row alive and its leases honest. When the
worker goes (`stopping.py`), steps that do not finish in time are cancelled, and so handed back.
"""

import asyncio
import atexit
import logging
import os
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar, cast
from uuid import UUID

import redis
from sqlalchemy import Engine
from uuid_utils.compat import uuid7

from models.engine import make_engine
from rejoinder import providers
from rejoinder.core.cancellation import Cancellation
from rejoinder.core.effects import Cause, Dispatch, Fence
from rejoinder.core.settings import Settings
from rejoinder.prices import Prices
from rejoinder.streams import EventWriter
from rejoinder.tools import Registry, default_registry
from tasks import hints, stopping
from tasks.background import Background
from tasks.heartbeat import Heartbeat
from tasks.histories import MOST_ENTRIES, Histories
from tasks.timers import after
from tasks.turnstile import WIDTH, Turnstile

log = logging.getLogger(__name__)

T = TypeVar("T")

HEED_SECONDS = 5.0
"""How long a cancelled step may take to let go of what it does."""
GOODBYE_SECONDS = 1.0
"""How long connections to models may take to be closed."""
MAX_EARLY = 1000
"""Hints that are kept for steps that may be about to begin."""


@dataclass
class Running:
    """A step in flight."""

    chat_id: UUID
    lease_id: UUID
    since: float
    cancellation: Cancellation = field(default_factory=Cancellation)


class Runtime:
    """One per process; see `current`."""

    def __init__(self, settings: Settings) -> None:
        """Connect to nothing yet: connections are made when first needed."""
        self.settings = settings
        self.dead_after = timedelta(seconds=settings.dead_after_seconds)
        self.engine: Engine = make_engine(
            settings.database_url,
            prepare=settings.fast,
            pool_size=settings.database_pool,
            max_overflow=0,  # one that comes and goes costs Postgres a process each time
            pool_use_lifo=True,  # the one that was used last: its server process is warm
        )
        self.redis = redis.Redis.from_url(
            settings.redis_url, socket_keepalive=True, health_check_interval=30
        )
        self.events = EventWriter(self.redis, settings.redis_prefix)
        self.worker_id = uuid7()
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self.histories = Histories(MOST_ENTRIES if settings.fast else 0)
        self.turnstile = Turnstile(WIDTH if settings.fast else settings.concurrency)
        self.prices = Prices.load(settings.prices)
        self.background = Background(lambda: self.loop)
        self.tools: Registry = default_registry
        self.tools.load_modules(settings.tools)
        self.suspects = threading.Lock()
        """Held by the one suspect chat that this process runs, or while it looks for one."""
        self.left: OrderedDict[UUID, Dispatch] = OrderedDict()
        """Chats that were left meanwhile, because they may be suspect, too."""
        self.unwritten: dict[UUID, tuple[Fence, Mapping[str, Any]]] = {}
        """What steps could not write in time, by lease: it is handed back with the chat."""
        self.in_flight: dict[UUID, Running] = {}
        self._early: OrderedDict[UUID, Cause] = OrderedDict()
        self._loop_lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.heartbeat = Heartbeat(self)
        self._closed = False
        channel = hints.channel_of(settings.redis_prefix, self.worker_id)
        self._hints = hints.Listener(self.redis, channel, self.cancel, self.heartbeat.soon)

    def start(self) -> None:
        """Announce this process, begin to beat and to listen."""
        self.heartbeat.start()
        self._hints.start()
        stopping.this.on(self._drain, self._cancel_in_the_end)
        atexit.register(self.close)

    def close(self) -> None:
        """Say goodbye: the last events go out, and the row of this process is removed."""
        if self._closed:
            return
        self._closed = True
        self.background.cancel()
        self._hints.close()
        self.events.close()
        self.heartbeat.close()
        self.engine.dispose()
        self._close_providers()

    def _close_providers(self) -> None:
        """Close the connections to models where they live: on the loop, unless that is blocked."""
        if self._loop is not None:
            closing = asyncio.run_coroutine_threadsafe(providers.close_all(), self._loop)
            with suppress(TimeoutError):
                closing.result(GOODBYE_SECONDS)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """This process' event loop, in a thread that ends with the process."""
        with self._loop_lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                run = self._loop.run_forever
                threading.Thread(target=run, name="event loop", daemon=True).start()
            return self._loop

    def run(self, work: Callable[[], Awaitable[T]], cancellation: Cancellation) -> T:
        """Run something on the event loop, from a pool thread, and wait for it.

        Nothing that it raises may leave the loop's task: what is no `Exception` would end the loop.
        What does not heed its cancellation is left behind after a while: a tool that blocks the
        loop, or swallows the cancellation, must not keep a worker from going, nor the other chats.
        """
        outcome: SimpleQueue[tuple[T | None, BaseException | None] | None] = SimpleQueue()

        async def guarded() -> None:
            try:
                outcome.put((await work(), None))  # at once: a future would take another round
            except BaseException as error:  # noqa: BLE001  # raised again by whoever waits
                outcome.put((None, error))

        self.loop.call_soon_threadsafe(self._begin, guarded())  # a blocked loop takes it, too
        leave = partial(outcome.put, None)
        forget = cancellation.on_cancel(lambda _: after(HEED_SECONDS, leave))
        came = outcome.get()
        forget()
        if came is None:
            log.warning("A step was left behind: it did not heed its cancellation")
            cancellation.raise_if_cancelled()
            raise RuntimeError("What was left behind had not been cancelled")
        value, error = came
        if error is not None:
            raise error
        return cast("T", value)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Start something on the loop, in the loop's thread; kept until it is done."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @contextmanager
    def running(self, chat_id: UUID, lease_id: UUID) -> Iterator[Running]:
        """Keep track of a step, so that it can be cancelled."""
        step = Running(chat_id, lease_id, time.monotonic())
        self.in_flight[lease_id] = step
        try:
            if (early := self._early.pop(lease_id, None)) is not None:
                step.cancellation.cancel(early)
            if stopping.this.asked:  # the claim and the news came together
                step.cancellation.cancel(Cause.SHUTDOWN)
            yield step
        finally:
            del self.in_flight[lease_id]

    def cancel(self, lease_id: UUID, cause: Cause) -> None:
        """Cancel the step that holds this lease, if it runs here, or as soon as it does."""
        self._early[lease_id] = cause  # the claim's answer may still be on its way
        if (step := self.in_flight.get(lease_id)) is not None:
            self._early.pop(lease_id, None)
            step.cancellation.cancel(cause)
            return
        if len(self._early) > MAX_EARLY:
            self._early.popitem(last=False)

    def cancel_all(self, cause: Cause) -> None:
        """Cancel every step of this process."""
        for step in [*self.in_flight.values()]:
            step.cancellation.cancel(cause)

    def _cancel_in_the_end(self) -> None:
        self.cancel_all(Cause.SHUTDOWN)

    def _drain(self) -> None:
        from tasks.claiming import pass_on_all  # noqa: PLC0415  # it needs the runtime itself

        after(self.settings.drain_seconds, self._cancel_in_the_end)
        self.background.cancel()
        stopping.this.errand(partial(pass_on_all, self))  # the broker may keep it waiting


_current: Runtime | None = None
_lock = threading.Lock()
_inherited: list[Runtime] = []
"""What a fork copied. Kept, and never used: to let go of it could close the parent's sockets."""


def current() -> Runtime:
    """This process' runtime; made when it is first asked for."""
    global _current  # noqa: PLW0603  # one per process
    if _current is None:
        with _lock:
            if _current is None:
                runtime = Runtime(Settings.load(os.environ))
                runtime.start()
                _current = runtime
    return _current


def existing() -> Runtime | None:
    """This process' runtime, if it has one."""
    return _current


def _forget_the_parents() -> None:
    global _current, _lock  # noqa: PLW0603  # one per process
    _lock = threading.Lock()  # somebody may have held it at the moment of the fork
    if _current is not None:
        atexit.unregister(_current.close)
        _inherited.append(_current)
        _current = None


os.register_at_fork(after_in_child=_forget_the_parents)
