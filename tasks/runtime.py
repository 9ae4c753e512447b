"""What one worker process has: engine, Redis, event loop, provider clients, a heartbeat.

Made on first use in each process and never inherited across a fork. Pool threads run their step's
asynchronous part on the one event loop here, so that a process has one provider client, however
many chats it runs. The heartbeat thread keeps this process' row alive and cancels steps whose lease
is gone or whose chat is to stop.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar
from uuid import UUID

import redis
from anyio.from_thread import BlockingPortal, start_blocking_portal
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError
from uuid_utils.compat import uuid7

from models import claims, machine
from models.engine import make_engine, transaction
from rejoinder.core.cancellation import Cancellation, Cancelled
from rejoinder.core.effects import Cause, Fence
from rejoinder.core.errors import Stale
from rejoinder.core.settings import Settings
from rejoinder.core.state import Status
from rejoinder.streams import EventWriter
from rejoinder.tools import Registry, default_registry

log = logging.getLogger(__name__)

T = TypeVar("T")


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
            settings.database_url, pool_size=settings.database_pool, max_overflow=10
        )
        self.redis = redis.Redis.from_url(
            settings.redis_url, socket_keepalive=True, health_check_interval=30
        )
        self.events = EventWriter(self.redis, settings.redis_prefix)
        self.worker_id = uuid7()
        self.tools: Registry = default_registry
        self.tools.load_modules(settings.tools)
        self._steps: dict[UUID, Running] = {}
        self._orphans: set[UUID] = set()
        self._portal_lock = threading.Lock()
        self._portal: BlockingPortal | None = None
        self._loop: AbstractContextManager[BlockingPortal] | None = None
        self._heart = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._stopping = threading.Event()

    def start(self) -> None:
        """Announce this process and begin to beat."""
        name = f"{socket.gethostname()}:{os.getpid()}"
        claims.register_worker(self.engine, self.worker_id, name)
        self._heart.start()

    @property
    def portal(self) -> BlockingPortal:
        """The way into this process' event loop."""
        with self._portal_lock:
            if self._portal is None:
                # Entered for the life of the process, and kept: a dropped context would be closed.
                self._loop = start_blocking_portal("asyncio")
                self._portal = self._loop.__enter__()
            return self._portal

    def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run something on the event loop, from a pool thread, and wait for it.

        A `Cancelled` must not leave the loop's task: as a BaseException it would end the loop.
        """

        async def guarded() -> T | Cancelled:
            try:
                return await work()
            except Cancelled as stop:
                return stop

        done = self.portal.call(guarded)
        if isinstance(done, Cancelled):
            raise done
        return done

    @contextmanager
    def running(self, chat_id: UUID, lease_id: UUID) -> Iterator[Running]:
        """Keep track of a step, so that it can be cancelled."""
        step = Running(chat_id, lease_id, time.monotonic())
        self._steps[lease_id] = step
        try:
            yield step
        finally:
            del self._steps[lease_id]

    def cancel(self, lease_id: UUID, cause: Cause) -> None:
        """Cancel the step that holds this lease, if it runs here."""
        step = self._steps.get(lease_id)
        if step is not None:
            step.cancellation.cancel(cause)

    def _beat(self) -> None:
        while not self._stopping.wait(self.settings.heartbeat_seconds):
            try:
                self.beat_once()
            except SQLAlchemyError as error:
                log.warning("Heartbeat failed, and is tried again: %s", error)

    def beat_once(self) -> None:
        """Say that this process lives; cancel what it should no longer do."""
        known = [*self._steps.values()]  # before the statement: a later claim is not in its answer
        leases = claims.heartbeat(self.engine, self.worker_id)
        if leases is None:
            claims.register_worker(self.engine, self.worker_id, socket.gethostname())
            leases = []
        held = {lease.lease_id: lease for lease in leases}
        self._hand_back_orphans(held)
        for step in known:
            lease = held.get(step.lease_id)
            if lease is None:
                step.cancellation.cancel(Cause.LEASE_LOST)
            elif lease.status is Status.INTERRUPTING:
                step.cancellation.cancel(Cause.INTERRUPT)

    def _hand_back_orphans(self, held: Mapping[UUID, claims.Lease]) -> None:
        """Release chats that are leased to this process but that no step of it works on.

        That happens when a claim or a write was committed and its answer got lost on the way. Only
        a lease that two beats in a row saw without a step: a claim may just be on its way back.
        """
        from tasks.dispatch import publish  # noqa: PLC0415  # it needs the runtime itself

        without = {lease_id for lease_id in held if lease_id not in self._steps}
        for lease_id in without & self._orphans:
            lease = held[lease_id]
            log.warning("Chat %s is leased to nobody here; handing it back", lease.chat_id)
            fence = Fence(lease.chat_id, lease.lease_id, lease.history_version)
            with suppress(Stale):
                with transaction(self.engine) as tx:
                    effects = machine.release(tx, fence)
                publish(self, effects)
        self._orphans = without


_current: Runtime | None = None
_owner: int | None = None
_lock = threading.Lock()


def current() -> Runtime:
    """This process' runtime; a forked child gets its own."""
    global _current, _owner
    if _current is None or _owner != os.getpid():
        with _lock:
            if _current is None or _owner != os.getpid():
                runtime = Runtime(Settings.load(os.environ))
                runtime.start()
                _current, _owner = runtime, os.getpid()
    return _current
