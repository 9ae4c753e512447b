"""Where news from outside comes in: signals, shutdowns, revocations, forks, and deaths of children.

Celery tells of these in many ways, on each pool in others (docs/stopping.md has the list). Here
they become one of three things: the worker is going (`stopping`), a turn is to be stopped, or a
step's process is lost (`lost`). Handlers run in Celery's main loop or in a signal handler, so they
only note and pass on.
"""

import os
import signal
import threading
import time
from contextlib import suppress
from types import FrameType
from typing import Any

from billiard.util import set_pdeathsig
from celery import bootsteps
from celery.platforms import EX_OK
from celery.signals import (
    task_postrun,
    task_prerun,
    task_revoked,
    worker_init,
    worker_process_init,
    worker_process_shutdown,
    worker_ready,
    worker_shutdown,
    worker_shutting_down,
)
from celery.worker import state as worker_state

from rejoinder.core.settings import Settings
from tasks import app, broker, celery_patches, local_dispatch, lost, runtime, stopping
from tasks.celery_patches.control import listed
from tasks.dispatch import fall_back
from tasks.local_dispatch import STEP
from tasks.preload import preload

GREEN = ("gevent", "eventlet")
REFUSED = (
    "Rejoinder does not run on the {pool} pool: a cold shutdown there acknowledges and loses the"
    " messages of running steps, and lost ones are never restored. Use --pool=threads (the default)"
    " or --pool=prefork; or insist with REJOINDER_GREEN_POOLS=allow."
)
LOOK_SECONDS = 0.5
REPORT_SECONDS = 3.0
"""How long a child that was told to end stays after its task: for the task's result to be sent, and
for the main process to end it, if that is going, too."""
ORPHAN_SECONDS = 10.0
"""How long a child whose main process was killed takes to hand its step back, at most."""


# -- the worker begins --------------------------------------------------------------------------


@worker_init.connect
def _look_at_the_pool(sender: Any, **_: object) -> None:
    pool = str(getattr(sender.pool_cls, "__module__", sender.pool_cls))
    settings = Settings.load(os.environ)
    for name in GREEN:
        if name in pool and settings.green_pools != "allow":
            raise SystemExit(REFUSED.format(pool=name))
    forking = "prefork" in pool
    celery_patches.install(sender, lost.stop_revoked)
    preload(settings, stepping=forking or broker.STEPS in app.amqp.queues.consume_from)
    local_dispatch.start(sender, fall_back, settings)
    stopping.this.first(local_dispatch.drain)
    if forking:
        stopping.this.before_forks()


@worker_ready.connect
def _begin(**_: object) -> None:
    stopping.this.start()
    stopping.this.errand(runtime.current)  # an idle worker, too, notices if nobody sweeps
    cold = [signal.SIGQUIT]
    if os.environ.get("REMAP_SIGTERM") == "SIGQUIT":
        cold.append(signal.SIGTERM)
    for number in cold:
        _hear_first(number)
    _hear_first(signal.SIGINT, warm=True)


def _hear_first(number: signal.Signals, *, warm: bool = False) -> None:
    """Know of a cold shutdown before Celery, which tells of it after it has waited for the pool.

    After a warm one by Ctrl-C, Celery would end with exit code 1; but nothing has failed.
    """
    handler = signal.getsignal(number)

    def heard(signum: int, frame: FrameType | None) -> None:
        stopping.this.begin(now=not warm and not app.conf.worker_soft_shutdown_timeout)
        if callable(handler):
            handler(signum, frame)
        if warm:
            worker_state.should_stop = EX_OK

    signal.signal(number, heard)


# -- the worker goes ----------------------------------------------------------------------------


@worker_shutting_down.connect
def _going(**_: object) -> None:
    stopping.this.begin()


class Leaving(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery has no types
    """Hears of shutdowns that send no signal: `celery control shutdown`, Flower, a fatal error."""

    requires = ("celery.worker.components:Pool",)

    def close(self, _worker: Any) -> None:
        """Comes before the pool is waited for."""
        stopping.this.begin()


app.steps["worker"].add(Leaving)
app.steps["consumer"].update((local_dispatch.Receiving, broker.GatheredEvents))


@worker_shutdown.connect
@worker_process_shutdown.connect
def _say_goodbye(**_: object) -> None:
    if (here := runtime.existing()) is not None:
        here.close()


# -- children of a prefork pool -----------------------------------------------------------------

_at_work: list[None] = []
_told_to_end: list[None] = []  # as a flag: an Event takes a lock, and a signal handler may not


@worker_process_init.connect
def _begin_in_child(**_: object) -> None:
    if threading.current_thread() is not threading.main_thread():
        return
    if stopping.this.pipes is None:
        return  # solo: the main process itself
    with suppress(OSError):  # not on Linux: nothing to undo
        # Celery has the kernel kill children with their main process, at once and in mid-step.
        # They are to hand their steps back first, and then end by themselves.
        set_pdeathsig(0)
    stopping.begin_in_child()
    if local_dispatch.this is not None and local_dispatch.this.pipe is not None:
        local_dispatch.this.pipe.only_write()
    task_prerun.connect(_count_up)
    task_postrun.connect(_count_down)
    task_prerun.connect(_let_tasks_finish)
    threading.Thread(target=_end_in_time, name="end", daemon=True).start()


def _let_tasks_finish(**_: object) -> None:
    """Survive a SIGTERM while a task runs: systemd sends it to every process of a service.

    With the first task, for billiard sets handlers of its own after a child's initialisation.
    """
    task_prerun.disconnect(_let_tasks_finish)
    handler = signal.getsignal(signal.SIGTERM)

    def heard(signum: int, frame: FrameType | None) -> None:
        if _at_work:
            stopping.this.begin()
            _told_to_end.append(None)
        elif callable(handler):
            handler(signum, frame)

    signal.signal(signal.SIGTERM, heard)


def _count_up(**_: object) -> None:
    _at_work.append(None)


def _count_down(**_: object) -> None:
    _at_work.pop()


def _end_in_time() -> None:
    """End after the task that a SIGTERM met, or, step handed back, after the main process."""
    idle_since, ended = 0.0, False
    while not stopping.this.orphaned:
        time.sleep(LOOK_SECONDS)
        if _told_to_end and not idle_since and not _at_work:
            idle_since = time.monotonic()
        if idle_since and not ended and time.monotonic() - idle_since > REPORT_SECONDS:
            ended = not _at_work  # what came meanwhile was passed on, and takes no time
            if ended:
                os.kill(os.getpid(), signal.SIGTERM)
    end = time.monotonic() + ORPHAN_SECONDS
    while _at_work and time.monotonic() < end:
        time.sleep(0.05)
    _say_goodbye()
    os._exit(1)


# -- revocations --------------------------------------------------------------------------------


@task_revoked.connect
def _stop_its_turn(sender: Any, request: Any, *, expired: bool = False, **_: object) -> None:
    if sender.name == STEP and not expired:
        # The turn that it was rung for, if it says: it may run the next one by now.
        turn_id = (request.stamps or {}).get("turn_id")
        lost.stop_revoked(listed(turn_id or request.id))
