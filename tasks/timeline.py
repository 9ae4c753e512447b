"""Where a step's time goes, as its worker sees it: claim, load, model, tools, writes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Timeline:
    """The clock of one step."""

    def __init__(self, claim_seconds: float) -> None:
        """Begin when the claim was asked for."""
        self._began = time.monotonic() - claim_seconds
        self._spent = {"claim": claim_seconds}

    @contextmanager
    def measure(self, what: str) -> Iterator[None]:
        """Count the time that this takes; it may come several times."""
        since = time.monotonic()
        self._spent.setdefault(what, 0.0)
        try:
            yield
        finally:
            self._spent[what] += time.monotonic() - since

    @property
    def seconds(self) -> float:
        """All of it, until now."""
        return time.monotonic() - self._began

    def ms(self, what: str, *, so_far: float = 0.0) -> float | None:
        """Milliseconds of one kind; None if there was nothing of it."""
        spent = self._spent.get(what)
        return None if spent is None else round((spent + so_far) * 1000, 3)
