"""Running tool calls in a test: in an event loop that must not hang."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.from_thread
import anyio.to_thread

from rejoinder.core.cancellation import Cancellation
from rejoinder.core.parts import Json, ToolCall
from rejoinder.testing.tools import CHAT_ID, TURN_ID
from rejoinder.tools import Ran, Registry, Run, Tool, ToolContext, run_alone, run_calls, tool

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping

way = "loop"
"""How calls are run: all in the loop, or `alone` those that can be."""
TINY = 0.02
LONG = 10.0


async def run(
    *calls: tuple[Tool | str, Mapping[str, Json]],
    cancellation: Cancellation | None = None,
    progress: list[Json] | None = None,
    **options: Any,
) -> Ran:
    """Run calls with the ids "0", "1", …"""
    heard = [] if progress is None else progress
    tools = {named for named, _ in calls if isinstance(named, Tool)}
    asked = [
        ToolCall(str(n), named.name if isinstance(named, Tool) else named, arguments)
        for n, (named, arguments) in enumerate(calls)
    ]
    threads = {"max_threads": options.pop("max_threads")} if "max_threads" in options else {}
    running = Run(
        registry=options.pop("registry", None) or Registry(tools),
        make_context=lambda call, stop: ToolContext(
            CHAT_ID, TURN_ID, call.call_id, call.name, stop, heard.append
        ),
        cancellation=cancellation or Cancellation(),
        **options,
    )
    if way == "alone" and not threads:
        alone = partial(run_alone, running, asked, _in_the_loop)
        ran = await anyio.to_thread.run_sync(alone, abandon_on_cancel=True)
        if ran is not None:
            return ran
    return await run_calls(running, asked, **threads)


def _in_the_loop(work: Callable[[], Awaitable[Any]]) -> Any:
    return anyio.from_thread.run(_awaited, work)


async def _awaited(work: Callable[[], Awaitable[Any]]) -> Any:
    return await work()


def play(run: Coroutine[Any, Any, Ran]) -> Ran:
    """In an event loop that must not hang."""

    async def bounded() -> Ran:
        with anyio.fail_after(LONG):
            return await run

    # In debug mode the loop refuses calls from other threads that would not wake it up.
    return anyio.run(bounded, backend_options={"debug": True})


def contents(ran: Ran) -> list[Json]:
    return [result.content for result in ran.results]


@tool
def add(a: int, b: int = 1) -> int:
    return a + b
