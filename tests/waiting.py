"""The only place where a test sleeps: between two looks at a condition, up to a deadline."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def wait_until(condition: Callable[[], T], deadline: float = 10.0, what: str = "") -> T:
    """The first true value of `condition`, or a failure that says what did not come in time."""
    end = time.monotonic() + deadline
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            described = what or getattr(condition, "__name__", repr(condition))
            raise AssertionError(f"not within {deadline} s: {described}; last seen: {value!r}")
        time.sleep(0.02)
