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
        self._since: dict[str, float] = {}

    @contextmanager
    def measure(self, what: str) -> Iterator[None]:
        """Count the time that this takes; it may come several times."""
        self._since[what] = time.monotonic()
        try:
            yield
        finally:
            self._spent[what] = self._until_now(what)
            del self._since[what]

    @property
    def seconds(self) -> float:
        """All of it, until now."""
        return time.monotonic() - self._began

    def ms(self, what: str) -> float | None:
        """Milliseconds of one kind, until now; None if there was nothing of it."""
        known = what in self._spent or what in self._since
        return round(self._until_now(what) * 1000, 3) if known else None

    def _until_now(self, what: str) -> float:
        now = time.monotonic()
        return self._spent.get(what, 0.0) + now - self._since.get(what, now)
