"""Running tool calls in a test: in an event loop that must not hang."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

from rejoinder.core.cancellation import Cancellation
from rejoinder.core.parts import Json, ToolCall
from rejoinder.testing.tools import CHAT_ID, TURN_ID
from rejoinder.tools import Ran, Registry, Run, Tool, ToolContext, run_calls, tool

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

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
    return await run_calls(running, asked, **threads)


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
