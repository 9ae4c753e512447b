"""A blocking function in a thread that can be left behind.

The threads of every pool in reach (anyio's, concurrent.futures') are joined when the interpreter
exits, so one blocking tool would keep a stopped worker alive for ever. These are daemon threads,
one per call: when the waiting task is cancelled, the thread goes on, and nobody listens. One that
is done waits a while for another call: to wake it takes less than to start a new one.
"""

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class ToolExit(Exception):  # noqa: N818  # an event, like the SystemExit that it stands for
    """A tool tried to end the process. That is the tool's failure, not a shutdown."""


async def in_thread(function: Callable[[], T], name: str) -> T:
    """Run it in a daemon thread, with this task's context variables; its exceptions come back."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            tell: tuple[Callable[[Any], None], Any] = done.set_result, function()
        except SystemExit as error:
            # Signals reach the main thread only: this one is the tool's own.
            tell = done.set_exception, ToolExit(f"the tool tried to exit ({error.code!r})")
        except StopIteration as error:
            tell = done.set_exception, RuntimeError(f"StopIteration: {error}")  # no future takes it
        except BaseException as error:  # noqa: BLE001  # raised again in the waiting task
            tell = done.set_exception, error
        with suppress(RuntimeError):  # the loop is gone, and so is whoever waited
            loop.call_soon_threadsafe(_deliver, done, *tell)

    _start(partial(copy_context().run, run), name)
    return await done


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


def _deliver(done: "asyncio.Future[T]", tell: Callable[[Any], None], what: object) -> None:
    if not done.done():
        tell(what)
