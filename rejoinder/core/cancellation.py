"""Why a step is to stop, carried from the edge to the last write.

One `Cancellation` per step. The first cause is kept: a shutdown stays a shutdown even if the socket
it closes then looks like a lost connection. Safe from any thread and from signal handlers' helper
threads; callbacks run once, in the thread that cancels, or at once if it is cancelled already.
"""

import threading
from collections.abc import Callable

from rejoinder.core.effects import Cause


class Cancelled(BaseException):
    """Work was stopped on purpose. Not an `Exception`: nobody's `except Exception` may keep it."""

    def __init__(self, cause: Cause) -> None:
        """Keep the cause, which decides the next status."""
        super().__init__(cause)
        self.cause = cause


class Cancellation:
    """A cause, once there is one, and whom to tell."""

    def __init__(self) -> None:
        """Begin uncancelled."""
        self._lock = threading.Lock()
        self._cause: Cause | None = None
        self._callbacks: list[Callable[[Cause], None]] = []

    @property
    def cause(self) -> Cause | None:
        """The first cause, or None."""
        return self._cause

    @property
    def cancelled(self) -> bool:
        """Whether to stop."""
        return self._cause is not None

    def cancel(self, cause: Cause) -> bool:
        """Ask to stop; False if somebody did before."""
        with self._lock:
            if self._cause is not None:
                return False
            self._cause = cause
            callbacks, self._callbacks = self._callbacks, []
        for tell in callbacks:
            tell(cause)
        return True

    def on_cancel(self, tell: Callable[[Cause], None]) -> Callable[[], None]:
        """Have `tell` called with the cause; returns a function that takes this back."""
        with self._lock:
            if self._cause is None:
                self._callbacks.append(tell)
                return lambda: self._forget(tell)
        tell(self._cause)
        return lambda: None

    def raise_if_cancelled(self) -> None:
        """Raise `Cancelled` with the cause, if there is one."""
        if self._cause is not None:
            raise Cancelled(self._cause)

    def _forget(self, tell: Callable[[Cause], None]) -> None:
        with self._lock:
            if tell in self._callbacks:
                self._callbacks.remove(tell)
