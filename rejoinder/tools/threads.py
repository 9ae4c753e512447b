"""A blocking function in a thread that can be left behind.

The threads of every pool in reach (anyio's, concurrent.futures') are joined when the interpreter
exits, so one blocking tool would keep a stopped worker alive for ever. These are daemon threads,
one per call: when the waiting task is cancelled, the thread goes on, and nobody listens. Python can
end no thread, so those are counted (`abandoned`), and whoever starts calls keeps them few.
A thread that is done waits a while for another call: to wake it takes less than to start a new one.
"""

import asyncio
import os
import threading
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeAlias, TypeVar, cast

T = TypeVar("T")
_Outcome: TypeAlias = tuple[T | None, BaseException | None]
"""What a function returned, or what it raised."""


class ToolExit(Exception):  # noqa: N818  # an event, like the SystemExit that it stands for
    """A tool tried to end the process. That is the tool's failure, not a shutdown."""


async def in_thread(function: Callable[[], T], name: str) -> T:
    """Run it in a daemon thread, with this task's context variables; its exceptions come back."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    returned = threading.Event()

    def run() -> None:
        outcome = _outcome(function)
        returned.set()
        _abandoned.pop(returned, None)
        with suppress(RuntimeError):  # the loop is gone, and so is whoever waited
            loop.call_soon_threadsafe(_deliver, done, outcome)

    _start(partial(copy_context().run, run), name)
    try:
        return await done
    except asyncio.CancelledError:
        _abandoned[returned] = name
        if returned.is_set():  # it came before it was noted, or it saw the note and removed it
            _abandoned.pop(returned, None)
        raise


def abandoned() -> Counter[str]:
    """How many calls of this process nobody waits for any more, by name, and still run."""
    return Counter(_abandoned.copy().values())


_abandoned: dict[threading.Event, str] = {}


def _outcome(function: Callable[[], T]) -> "_Outcome[T]":
    try:
        return function(), None
    except SystemExit as error:
        # Signals reach the main thread only: this one is the tool's own.
        return None, ToolExit(f"the tool tried to exit ({error.code!r})")
    except StopIteration as error:
        return None, RuntimeError(f"StopIteration: {error}")  # no future takes it
    except BaseException as error:  # noqa: BLE001  # raised again by whoever waits
        return None, error


_IDLE_SECONDS = 10.0
_idle: "deque[SimpleQueue[_Work]]" = deque()
"""Threads that wait for something to do, the last one first."""


def _start(work: Callable[[], None], name: str) -> None:
    try:
        _idle.pop().put((work, name))
    except IndexError:
        threading.Thread(target=_serve, args=((work, name),), name=name, daemon=True).start()


def _serve(first: "_Work") -> None:
    """Do one thing after the other, until nothing comes for a while."""
    mine: SimpleQueue[_Work] = SimpleQueue()
    me, todo = threading.current_thread(), first
    while True:
        work, me.name = todo
        work()
        _idle.append(mine)
        try:
            todo = mine.get(timeout=_IDLE_SECONDS)
        except Empty:
            try:
                _idle.remove(mine)
            except ValueError:  # somebody has just taken it
                todo = mine.get()
            else:
                return


_Work = tuple[Callable[[], None], str]
os.register_at_fork(after_in_child=_idle.clear)
os.register_at_fork(after_in_child=_abandoned.clear)


def _deliver(done: "asyncio.Future[T]", outcome: "_Outcome[T]") -> None:
    value, error = outcome
    if done.done():
        return
    if error is not None:
        done.set_exception(error)
    else:
        done.set_result(cast("T", value))
