"""Running a tool in a test as a worker would: validation, timeout, result and all."""

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

import anyio

from rejoinder.core.cancellation import Cancellation, Cancelled
from rejoinder.core.parts import Json, ToolCall, ToolResult
from rejoinder.tools.context import ToolContext
from rejoinder.tools.define import Tool
from rejoinder.tools.registry import Registry
from rejoinder.tools.run import DEFAULT_TIMEOUT, Run, run_calls

CHAT_ID = UUID("00000000-0000-7000-8000-000000000001")
TURN_ID = UUID("00000000-0000-7000-8000-000000000002")


def run_tool(tool: Tool, /, **arguments: Json) -> ToolResult:
    """What the model would get: `run_tool(weather, city="Bonn").content`."""
    return anyio.run(lambda: call_tool(tool, arguments))


async def call_tool(  # noqa: PLR0913  # all but two are named
    tool: Tool,
    arguments: Mapping[str, Any],
    *,
    call_id: str = "test-call",
    timeout: float = DEFAULT_TIMEOUT,  # noqa: ASYNC109  # a default for the tool, not for us
    context_limit: int | None = None,
    cancellation: Cancellation | None = None,
    on_progress: Callable[[Json], None] | None = None,
) -> ToolResult:
    """The same in an event loop, with everything that a worker can set.

    Raises `Cancelled` if the cancellation fires before the tool has finished.
    """
    stop = cancellation or Cancellation()

    def context(call: ToolCall, own: Cancellation) -> ToolContext:
        return ToolContext(CHAT_ID, TURN_ID, call.call_id, call.name, own, on_progress)

    run = Run(
        registry=Registry([tool]),
        make_context=context,
        cancellation=stop,
        default_timeout=timeout,
        context_limit=context_limit,
    )
    ran = await run_calls(run, [ToolCall(call_id, tool.name, arguments)])
    if ran.cause is not None:
        raise Cancelled(ran.cause)
    return ran.results[0]
