"""Threads that tools leave behind: counted, bounded, and taken back."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest

from rejoinder.tools import tool
from rejoinder.tools.threads import abandoned, in_thread
from tests.tool_runs import LONG, TINY, add, contents, play, run
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

BOUND = 3


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Set it, and stuck tools return; in the end they all have."""
    wait_until(lambda: not abandoned())
    event = threading.Event()
    yield event
    event.set()
    wait_until(lambda: not abandoned())


def test_calls_that_do_not_return_are_bounded_and_the_others_are_told(
    release: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    @tool(timeout=TINY)
    def stuck() -> None:
        release.wait(LONG)

    @tool
    async def light() -> str:
        return "needs no thread"

    before = threading.active_count()
    for _ in range(30):
        play(run((stuck, {}), max_abandoned=BOUND))
    assert abandoned() == {"tool stuck": BOUND}
    assert threading.active_count() <= before + BOUND

    caplog.clear()
    ran = play(run((add, {"a": 1}), (light, {}), max_abandoned=BOUND))
    refusal = (
        "add was not run: 3 earlier tool calls on this worker have not returned, and it starts no"
        " more of this kind until some do. Try again later, or go on without it."
    )
    assert contents(ran) == [refusal, "needs no thread"]
    assert [result.is_error for result in ran.results] == [True, False]
    assert (ran.unfinished, ran.cause) == ((), None)  # a result: the step goes on
    [warning] = caplog.records
    assert warning.levelname == "WARNING"
    assert "tool stuck (3)" in warning.message

    release.set()
    wait_until(lambda: not abandoned())
    assert contents(play(run((add, {"a": 1}), max_abandoned=BOUND))) == ["2"]


@pytest.mark.usefixtures("release")
def test_a_thread_that_returns_as_it_is_abandoned_does_not_count() -> None:
    async def abandon() -> None:
        over = threading.Event()
        task = asyncio.create_task(in_thread(over.set, "late"))
        await anyio.lowlevel.checkpoint()
        over.wait(LONG)  # in the loop's own thread: the news cannot be heard before the cancel
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def main() -> None:
        for _ in range(200):
            await abandon()

    anyio.run(main)
    wait_until(lambda: not abandoned())
