"""A blocking function in a thread that can be left behind.

The threads of every pool in reach (anyio's, concurrent.futures') are joined when the interpreter
exits, so one blocking tool would keep a stopped worker alive for ever. These are daemon threads,
one per call: when the waiting task is cancelled, the thread goes on, and nobody listens.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
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

    threading.Thread(target=copy_context().run, args=(run,), name=name, daemon=True).start()
    return await done


def _deliver(done: "asyncio.Future[T]", tell: Callable[[Any], None], what: object) -> None:
    if not done.done():
        tell(what)
