"""What is to be done at a moment: in order, whatever else fails, and not in a fork as well."""

import os
import threading
import time

import pytest

from tasks import timers
from tests.waiting import wait_until


def fail(why: str) -> None:
    raise ValueError(why)


@pytest.fixture(autouse=True)
def _a_clock_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers, "_lock", threading.Condition())
    monkeypatch.setattr(timers, "_waiting", [])
    monkeypatch.setattr(timers, "_thread", None)


def test_an_earlier_moment_does_not_wait_for_a_later_one() -> None:
    came: list[str] = []
    timers.after(600, lambda: came.append("later"))
    wait_until(lambda: timers._lock._waiters, what="the thread, asleep")  # type: ignore[attr-defined]
    began = time.monotonic()
    timers.after(0, lambda: came.append("now"))
    wait_until(lambda: came == ["now"])
    assert time.monotonic() - began >= timers.SLACK_SECONDS


def test_what_fails_does_not_hold_up_the_next() -> None:
    came = threading.Event()
    timers.after(0, lambda: fail("on purpose"))
    timers.after(0.01, came.set)
    assert came.wait(10)


def test_a_fork_begins_with_no_timers_and_has_a_clock_of_its_own() -> None:
    timers.after(600, lambda: None)
    child = os.fork()
    if child == 0:  # no pytest in here
        came = threading.Event()
        begins_empty = not timers._waiting
        timers.after(0, came.set)
        os._exit(0 if begins_empty and came.wait(10) else 1)
    assert os.waitpid(child, 0)[1] == 0
