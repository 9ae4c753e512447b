"""Stopping the calls of one message: timeouts, cancellation, exits."""

from __future__ import annotations

import asyncio
import sys
import threading
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING

import anyio
import pytest

from rejoinder.core.cancellation import Cancellation, Cancelled
from rejoinder.core.effects import Cause
from rejoinder.testing.tools import call_tool
from rejoinder.tools import Ran, ToolContext, tool
from tests.tool_runs import LONG, TINY, add, contents, play, run
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from rejoinder.core.parts import Json, ToolResult


def test_an_async_tool_that_exits_beside_the_main_thread_fails_alone() -> None:
    @tool
    async def leaving() -> None:
        sys.exit(3)

    ran: list[Ran] = []
    thread = threading.Thread(target=lambda: ran.append(play(run((leaving, {}), (add, {"a": 1})))))
    thread.start()
    thread.join(LONG)
    assert contents(ran[0]) == ["SystemExit: 3", "2"]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_an_exit_in_the_main_thread_may_be_a_signal_and_reaches_the_caller(
    error: BaseException,
) -> None:
    ended: list[str] = []

    @tool
    async def leaving() -> None:
        raise error

    @tool
    async def waiting() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("sibling")

    async def main() -> None:
        with pytest.raises(type(error)):
            await run((waiting, {}), (leaving, {}))

    anyio.run(main)
    assert ended == ["sibling"]


def test_a_blocking_tool_that_times_out_is_left_behind_and_told_to_stop() -> None:
    release, over = threading.Event(), threading.Event()
    seen: list[object] = []

    @tool(timeout=TINY)
    def stuck(context: ToolContext) -> None:
        release.wait(LONG)
        context.progress("too late")
        seen.extend([context.cancelled, context.cause])
        over.set()

    progress: list[Json] = []
    ran = play(run((stuck, {}), (add, {"a": 1}), progress=progress))
    assert contents(ran) == ["stuck timed out after 0.02 s; it may still be running.", "2"]
    assert ran.results[0].is_error
    assert ran.unfinished == ()
    release.set()
    assert over.wait(LONG)
    assert seen == [True, Cause.TIMEOUT]
    assert progress == []


def test_an_async_tool_that_times_out_is_cancelled_and_knows_why() -> None:
    seen: list[object] = []

    @tool
    async def stuck(context: ToolContext) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            seen.append(context.cause)

    ran = play(run((stuck, {}), default_timeout=TINY))
    assert contents(ran) == [
        "stuck timed out after 0.02 s; it was cancelled; what it had done by then stays done."
    ]
    assert seen == [Cause.TIMEOUT]


def test_a_timeout_of_the_tools_own_is_an_exception_like_others() -> None:
    @tool
    async def impatient() -> None:
        with anyio.fail_after(0):
            await anyio.sleep_forever()

    assert contents(play(run((impatient, {})))) == ["TimeoutError"]


def test_a_tool_can_have_no_timeout() -> None:
    @tool(timeout=inf)
    async def patient() -> str:
        return "done"

    assert contents(play(run((patient, {}), default_timeout=TINY))) == ["done"]


def test_a_result_that_comes_in_spite_of_the_timeout_counts() -> None:
    @tool(timeout=TINY)
    async def stubborn() -> str:
        with suppress(BaseException):
            await anyio.sleep_forever()
        return "cleaned up"

    assert contents(play(run((stubborn, {})))) == ["cleaned up"]


@pytest.mark.parametrize("cause", [Cause.INTERRUPT, Cause.SHUTDOWN, Cause.LEASE_LOST])
def test_a_cancellation_keeps_what_finished_and_names_what_did_not(cause: Cause) -> None:
    cancellation = Cancellation()
    blocked, release = threading.Event(), threading.Event()
    seen: list[object] = []

    @tool
    async def waiting(context: ToolContext) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            seen.append(context.cause)

    @tool
    def blocking(context: ToolContext) -> None:
        blocked.set()
        release.wait(LONG)
        seen.append(context.cause)

    def finished(result: ToolResult) -> None:
        if result.call_id == "1":
            threading.Thread(target=stop).start()  # as a control hint does: from another thread

    def stop() -> None:
        blocked.wait(LONG)
        cancellation.cancel(cause)

    ran = play(
        run(
            (waiting, {}),
            (add, {"a": 1}),
            (blocking, {}),
            (add, {"a": "x"}),
            cancellation=cancellation,
            on_result=finished,
        )
    )
    assert [result.call_id for result in ran.results] == ["1", "3"]
    assert ran == Ran(ran.results, unfinished=("0", "2"), untouched=(), cause=cause)
    release.set()
    wait_until(lambda: len(seen) == 2)
    assert seen == [cause, cause]


def test_calls_that_never_began_are_told_apart() -> None:
    cancellation = Cancellation()
    release = threading.Event()

    @tool
    def blocking() -> None:
        cancellation.cancel(Cause.SHUTDOWN)
        release.wait(LONG)

    ran = play(run((blocking, {}), (blocking, {}), cancellation=cancellation, max_threads=1))
    release.set()
    assert ran == Ran((), unfinished=("0", "1"), untouched=("1",), cause=Cause.SHUTDOWN)


def test_a_call_that_a_cancellation_frees_a_thread_for_does_not_begin() -> None:
    class Slow(Cancellation):
        """Tells the first call at once, and the others too late."""

        def on_cancel(self, tell: Callable[[Cause], None]) -> Callable[[], None]:
            return (lambda: None) if self._callbacks else super().on_cancel(tell)

    cancellation = Slow()
    release = threading.Event()

    @tool
    def blocking() -> None:
        cancellation.cancel(Cause.SHUTDOWN)
        release.wait(LONG)

    ran = play(run((blocking, {}), (blocking, {}), cancellation=cancellation, max_threads=1))
    release.set()
    assert ran == Ran((), unfinished=("0", "1"), untouched=("1",), cause=Cause.SHUTDOWN)


def test_a_cancellation_that_comes_after_the_last_result_is_no_cause() -> None:
    cancellation = Cancellation()

    def finished(_result: ToolResult) -> None:
        cancellation.cancel(Cause.SHUTDOWN)

    ran = play(run((add, {"a": 1}), cancellation=cancellation, on_result=finished))
    assert (contents(ran), ran.unfinished, ran.cause) == (["2"], (), None)


def test_a_thread_that_ends_too_late_disturbs_nobody() -> None:
    release = threading.Event()
    threads: list[threading.Thread] = []
    troubles: list[object] = []

    @tool(timeout=TINY)
    def stuck(*, fails: bool) -> None:
        threads.append(threading.current_thread())
        release.wait(LONG)
        if fails:
            raise ValueError

    async def main() -> Ran:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, trouble: troubles.append(trouble))
        ran = await run((stuck, {"fails": True}), (stuck, {"fails": False}))
        release.set()
        for thread in threads:
            thread.join(LONG)
        await anyio.wait_all_tasks_blocked()
        return ran

    assert len(play(main()).results) == 2
    assert troubles == []


def test_nothing_begins_once_cancelled() -> None:
    cancellation = Cancellation()
    cancellation.cancel(Cause.INTERRUPT)
    ran = play(run((add, {"a": 1}), ("nope", {}), cancellation=cancellation))
    assert ran == Ran((), ("0", "1"), ("0", "1"), Cause.INTERRUPT)


@pytest.mark.parametrize("error", [ConnectionResetError("by the cancel"), None])
def test_an_exception_of_a_cancelled_tool_is_no_result(error: Exception | None) -> None:
    cancellation = Cancellation()

    @tool
    async def touchy(context: ToolContext) -> None:
        cancellation.cancel(Cause.INTERRUPT)
        if error is not None:
            raise error
        context.raise_if_cancelled()

    ran = play(run((touchy, {}), cancellation=cancellation))
    assert ran == Ran((), ("0",), (), Cause.INTERRUPT)


def test_a_cancelled_of_some_other_work_goes_on() -> None:
    @tool
    async def odd() -> None:
        raise Cancelled(Cause.DEADLINE)

    with pytest.raises(Cancelled) as raised:
        play(run((odd, {}), (add, {"a": 1})))
    assert raised.value.cause is Cause.DEADLINE


def test_a_tool_that_waits_for_something_cancelled_fails_alone() -> None:
    @tool
    async def odd() -> None:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    ran = play(run((odd, {}), (add, {"a": 1})))
    assert contents(ran) == ["odd was cancelled from within, by what it waited for.", "2"]


def test_cancelling_the_task_that_runs_the_calls_stops_them() -> None:
    ended: list[str] = []

    async def main() -> None:
        started = anyio.Event()

        @tool
        async def waiting() -> None:
            started.set()
            try:
                await anyio.sleep_forever()
            finally:
                ended.append("tool")

        task = asyncio.create_task(run((waiting, {})))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        ended.append("task")

    anyio.run(main)
    assert ended == ["tool", "task"]


def test_cancellations_are_not_kept_alive_by_finished_calls() -> None:
    cancellation = Cancellation()
    play(run((add, {"a": 1}), cancellation=cancellation))
    assert cancellation._callbacks == []
    cancellation.cancel(Cause.SHUTDOWN)


def test_call_tool_raises_when_cancelled() -> None:
    cancellation = Cancellation()

    @tool
    async def waiting() -> None:
        cancellation.cancel(Cause.INTERRUPT)
        await anyio.sleep_forever()

    async def main() -> ToolResult:
        return await call_tool(waiting, {}, cancellation=cancellation)

    with pytest.raises(Cancelled):
        anyio.run(main)


def test_a_tool_may_take_longer_than_a_clock_can_count() -> None:
    @tool(timeout=2.0**63)
    def patient() -> str:
        return "done"

    assert contents(play(run((patient, {})))) == ["done"]
