"""Small work that nobody waits for, on the process' event loop: a chat's title.

It holds no slot of the pool, cannot fail or delay a step, and is not worth waiting for: it has a
time limit, there is only so much of it at once, and it is given up when the worker goes.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future

log = logging.getLogger(__name__)

MOST = 20
"""At once, in one process. What comes on top of that is not done."""


class Background:
    """The work in the background of one process."""

    def __init__(self, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        """Begin with nothing; the loop is asked for when there is something to do."""
        self._loop = loop
        self._lock = threading.Lock()
        self._under_way: set[Future[None]] = set()
        self._over = False

    def start(self, what: str, work: Callable[[], Awaitable[None]], seconds: float) -> bool:
        """Begin, from any thread, unless there is too much already; `what` is for the log."""
        with self._lock:
            if self._over or len(self._under_way) >= MOST:
                log.info("%s is left out: there is too much to do", what)
                return False
            future = asyncio.run_coroutine_threadsafe(_guarded(what, work, seconds), self._loop())
            self._under_way.add(future)
        future.add_done_callback(self._done)
        return True

    def cancel(self) -> None:
        """Give everything up, and begin nothing more."""
        with self._lock:
            self._over = True
            under_way = [*self._under_way]
        for future in under_way:
            future.cancel()

    def _done(self, future: "Future[None]") -> None:
        with self._lock:
            self._under_way.discard(future)


async def _guarded(what: str, work: Callable[[], Awaitable[None]], seconds: float) -> None:
    """Let nothing out but a cancellation: it would end the loop, or be lost without a word."""
    try:
        async with asyncio.timeout(seconds):
            await work()
    except asyncio.CancelledError:
        raise
    except TimeoutError:
        log.info("%s took longer than %g seconds and was given up", what, seconds)
    except BaseException as error:  # noqa: BLE001  # see above
        log.info("%s failed: %s", what, " ".join(str(error).split()) or type(error).__name__)
