"""One call of a tool that blocks, which is what most messages hold, without the event loop.

The same as `run.py` does with several: who asks waits for the tool's thread, for the end of its
time, or for the step's cancellation, whichever comes first. Each way through an event loop takes
longer than such a tool itself.
"""

import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from math import inf
from queue import Empty, SimpleQueue
from typing import Any

from rejoinder.core.cancellation import Cancellation
from rejoinder.core.effects import Cause
from rejoinder.core.parts import Json, ToolCall, ToolResult
from rejoinder.tools.cap import result_limit
from rejoinder.tools.define import FunctionTool
from rejoinder.tools.registry import Registry
from rejoinder.tools.run import DEFAULT_TIMEOUT, MakeContext, Ran, Run, Slot
from rejoinder.tools.threads import Outcome, start

InLoop = Callable[[Callable[[], Awaitable[Any]]], Any]
"""Runs something in an event loop, and waits for it."""


def run_alone(  # noqa: PLR0913  # all but two are named, as those of `run_calls`
    calls: Sequence[ToolCall],
    registry: Registry,
    *,
    in_loop: InLoop,
    make_context: MakeContext,
    cancellation: Cancellation,
    active: Collection[str] | None = None,
    default_timeout: float = DEFAULT_TIMEOUT,
    context_limit: int | None = None,
    on_result: Callable[[ToolResult], None] | None = None,
) -> Ran | None:
    """Run the one call that there is, in a thread, and wait for it; None: it is not such a call."""
    tool = registry.get(calls[0].name) if len(calls) == 1 else None
    if not isinstance(tool, FunctionTool) or tool.is_async:
        return None
    run = Run(
        registry=registry,
        make_context=make_context,
        cancellation=cancellation,
        active=active,
        default_timeout=default_timeout,
        limit=result_limit(context_limit),
        on_result=on_result,
    )
    slot, stop = Slot(calls[0]), Cancellation()
    forget = cancellation.on_cancel(partial(_pass_on, stop))
    try:
        _attempt(run, slot, stop, in_loop)
    except BaseException as error:  # noqa: BLE001  # sorted there
        run.judge(error, slot, stop)
    finally:
        forget()
    if slot.escaped is None:
        run.conclude(slot, stop)
    return run.ran([slot])


def _pass_on(stop: Cancellation, cause: Cause) -> None:
    stop.cancel(cause)


def _attempt(run: Run, slot: Slot, stop: Cancellation, in_loop: InLoop) -> None:
    if stop.cancelled:
        return
    tool = run.find(slot.call)
    if isinstance(tool, str):
        slot.fail(tool)
        return
    arguments = tool.signature.check(tool.name, slot.call.arguments)
    run.begin(tool, arguments, slot, stop)
    seconds = run.timeout(tool)
    until = time.monotonic() + seconds
    came: SimpleQueue[Outcome[tuple[Any, Json]] | None] = SimpleQueue()
    stop.on_cancel(lambda _: came.put(None))
    start(partial(run.blocking, tool, arguments), came.put, f"tool {tool.name}")
    outcome = _wait(came, seconds, stop)
    if outcome is None:
        return  # it was stopped; its thread is left behind
    value, error = outcome
    if error is not None or value is None:
        raise error or RuntimeError("A tool's thread told nothing")
    awaitable, content = value
    if awaitable is None:
        slot.answer(content)
    else:
        in_loop(partial(run.rest, slot, tool, awaitable, stop, until - time.monotonic()))


def _wait(
    came: "SimpleQueue[Outcome[tuple[Any, Json]] | None]", seconds: float, stop: Cancellation
) -> Outcome[tuple[Any, Json]] | None:
    try:
        return came.get(timeout=None if seconds == inf else seconds)
    except Empty:
        stop.cancel(Cause.TIMEOUT)
        return None
