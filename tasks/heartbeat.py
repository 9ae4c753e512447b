"""The heartbeat of a worker process: a thread that keeps its row alive, and its leases honest.

On a connection of its own, with short timeouts: steps that wait for a lock must not keep a process
from saying that it lives. The same tick cancels steps whose lease is gone, whose chat is to stop,
or whose time is up, and hands back chats that are leased to this process but have no step here.
"""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import SQLAlchemyError

from models import claims, machine
from models.engine import make_engine, transaction
from rejoinder.core.effects import Cause, Fence
from rejoinder.core.errors import Stale
from rejoinder.core.limits import SWEEP_OVERDUE
from rejoinder.core.state import Status
from tasks import stopping
from tasks.db_retry import is_transient, retrying

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID

    from sqlalchemy import Engine

    from rejoinder.core.effects import Effects
    from rejoinder.core.settings import Settings
    from tasks.runtime import Runtime

log = logging.getLogger(__name__)

AGAIN_SECONDS = 1.0
"""How soon a heartbeat that failed is tried again."""


class Heartbeat:
    """One per process; see `runtime.py`."""

    def __init__(self, runtime: Runtime) -> None:
        """Connect to nothing yet."""
        self._runtime = runtime
        self._engine = _own_engine(runtime.settings)
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._wanted = threading.Event()
        self._closed = False
        self._failed_at = -inf
        self._orphans: set[UUID] = set()
        self._sweeps = False

    def start(self) -> None:
        """Announce this process, and begin to beat."""
        retrying(self._register)()
        self._thread.start()

    def soon(self) -> None:
        """Look at the leases now: a hint may have been lost."""
        self._wanted.set()

    def close(self) -> None:
        """Stop, and remove the row of this process."""
        self._closed = True
        self._wanted.set()
        try:
            claims.retire_worker(self._engine, self._runtime.worker_id)
        except SQLAlchemyError as error:
            log.info("The row of this process stays for the sweep: %s", error)
        self._engine.dispose()

    @property
    def may_judge(self) -> bool:
        """Whether silence of others means anything: not if this one could not be heard either."""
        return time.monotonic() - self._failed_at > self._runtime.settings.dead_after_seconds

    def _register(self) -> None:
        claims.register_worker(self._engine, self._runtime.worker_id, self._runtime.name)

    def _beat(self) -> None:
        settings = self._runtime.settings
        pause = settings.heartbeat_seconds
        while True:
            early = self._wanted.wait(pause)
            self._wanted.clear()
            if self._closed:
                return
            pause = settings.heartbeat_seconds
            try:
                self._check_deadlines()
                self.beat_once(regular=not early)
            except Exception as error:  # noqa: BLE001  # a heart that stops is taken for dead
                log.warning("Heartbeat failed, and is tried again: %s", error)
                self._failed_at = time.monotonic()
                pause = min(pause, AGAIN_SECONDS)

    def _check_deadlines(self) -> None:
        latest = time.monotonic() - self._runtime.settings.step_seconds
        for step in [*self._runtime.in_flight.values()]:
            if step.since < latest:
                step.cancellation.cancel(Cause.DEADLINE)

    def beat_once(self, *, regular: bool = True) -> None:
        """Say that this process lives; cancel what it should no longer do."""
        runtime = self._runtime
        # Before the statement: a later claim is not in its answer.
        known = [*runtime.in_flight.values()]
        leases = claims.heartbeat(self._engine, runtime.worker_id)
        if leases is None:
            if not self._closed:
                self._register()
            leases = []
        held = {lease.lease_id: lease for lease in leases}
        if regular:
            runtime.histories.expire()
            self._hand_back_orphans(held)
        for step in known:
            lease = held.get(step.lease_id)
            if lease is None:
                step.cancellation.cancel(Cause.LEASE_LOST)
            elif lease.status is Status.INTERRUPTING:
                step.cancellation.cancel(Cause.INTERRUPT)
        if regular:
            self._sweep_if_nobody_does()

    def _sweep_if_nobody_does(self) -> None:
        """Sweep if beat, or whoever takes its messages, is gone; by another thread."""
        from tasks.sweeping import sweep_once  # noqa: PLC0415  # it needs the runtime itself

        if stopping.this.asked or not claims.begin_sweep(self._engine, older_than=SWEEP_OVERDUE):
            return
        if not self._sweeps:
            seconds = SWEEP_OVERDUE.total_seconds()
            log.warning("No sweep for %g seconds: is beat running? This worker sweeps", seconds)
            self._sweeps = True
        sweep = partial(sweep_once, self._runtime)
        threading.Thread(target=_logged, args=(sweep,), name="sweep", daemon=True).start()

    def _hand_back_orphans(self, held: Mapping[UUID, claims.Lease]) -> None:
        """Release chats that are leased to this process but that no step of it works on.

        That happens when a claim or a write was committed and its answer got lost on the way. Only
        a lease that two beats in a row saw without a step: a claim may just be on its way back. By
        another thread: a heart does not wait for a broker.
        """
        runtime = self._runtime
        without = {lease_id for lease_id in held if lease_id not in runtime.in_flight}
        for lease_id in runtime.unwritten.keys() - held.keys():
            del runtime.unwritten[lease_id]  # the chat was taken, or could be written after all
        for lease_id in without & (self._orphans | runtime.unwritten.keys()):
            lease = held[lease_id]
            log.warning("Chat %s is leased to nobody here; handing it back", lease.chat_id)
            stopping.this.errand(partial(self._hand_back, lease))
        self._orphans = without

    def _hand_back(self, lease: claims.Lease) -> None:
        from tasks.dispatch import publish  # noqa: PLC0415  # they need the runtime itself
        from tasks.lost import rebuild  # noqa: PLC0415

        runtime = self._runtime
        fence = Fence(lease.chat_id, lease.lease_id, lease.history_version)
        unwritten = runtime.unwritten.get(lease.lease_id)
        if unwritten is None:
            unwritten = fence, {"partial": rebuild(runtime, lease.chat_id, lease.history_version)}
        # Under the fence of the step itself: some of it may have been written after all.
        effects = self._released(*unwritten) or self._released(fence, {})
        if effects is not None:
            publish(runtime, effects)
        runtime.unwritten.pop(lease.lease_id, None)

    def _released(self, fence: Fence, produced: Mapping[str, Any]) -> Effects | None:
        """Release a chat; None if it is no longer this one's, or if that can never be stored."""
        try:
            with transaction(self._runtime.engine) as tx:
                return machine.release(tx, fence, counted=True, **produced)
        except Stale:
            return None
        except SQLAlchemyError as error:
            if is_transient(error):
                raise
            log.exception("Chat %s: what it produced cannot be stored", fence.chat_id)
            return None


def _logged(act: Callable[[], object]) -> None:
    try:
        act()
    except Exception:
        log.exception("A sweep failed; the next one goes on")


def _own_engine(settings: Settings) -> Engine:
    """One connection, on which nothing takes so long that this process would count as dead."""
    seconds = settings.dead_after_seconds / 3
    milliseconds = int(seconds * 1000)
    limits: dict[str, Any] = {
        "application_name": "rejoinder heartbeat",
        "options": f"-c lock_timeout={milliseconds} -c statement_timeout={milliseconds}",
        "connect_timeout": max(2, int(seconds)),  # libpq takes no less
        "tcp_user_timeout": milliseconds,
    }
    return make_engine(settings.database_url, pool_size=1, max_overflow=0, connect_args=limits)
