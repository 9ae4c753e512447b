"""One call of a tool that blocks, which is what most messages hold, without the event loop.

The same as `run.py` does with several: who asks waits for the tool's thread, for the end of its
time, or for the step's cancellation, whichever comes first. Each way through an event loop takes
longer than such a tool itself.
"""

import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from rejoinder.core.cancellation import Cancellation
from rejoinder.core.effects import Cause
from rejoinder.core.parts import Json, ToolCall
from rejoinder.tools.define import FunctionTool
from rejoinder.tools.run import Ran, Run, Slot
from rejoinder.tools.threads import Outcome, start

InLoop = Callable[[Callable[[], Awaitable[Any]]], Any]
"""Runs something in an event loop, and waits for it."""


def run_alone(run: Run, calls: Sequence[ToolCall], in_loop: InLoop) -> Ran | None:
    """Run the one call that there is, in a thread, and wait for it; None: it is not such a call."""
    tool = run.registry.get(calls[0].name) if len(calls) == 1 else None
    if not isinstance(tool, FunctionTool) or tool.is_async:
        return None
    slot, stop = Slot(calls[0]), Cancellation()
    forget = run.cancellation.on_cancel(partial(_pass_on, stop))
    try:
        begun = _begin(run, slot, stop)
        if begun is not None:
            _finish(run, slot, stop, begun, in_loop)
    except BaseException:
        stop.cancel(Cause.DEADLINE)  # a signal, say: not the tool's, which is told to stop
        raise
    finally:
        forget()
    if slot.escaped is None:
        run.conclude(slot, stop)
    return run.ran([slot])


@dataclass(frozen=True)
class _Begun:
    """A call whose thread is at work."""

    tool: FunctionTool[..., Any]
    until: float
    came: "SimpleQueue[Outcome[tuple[Any, Json]] | None]"
    """What came of it; None: it is not waited for any more."""

    @property
    def left(self) -> float:
        """Seconds."""
        return max(0.0, self.until - time.monotonic())


def _pass_on(stop: Cancellation, cause: Cause) -> None:
    stop.cancel(cause)


def _begin(run: Run, slot: Slot, stop: Cancellation) -> _Begun | None:
    """Have a thread begin, unless there is nothing to begin."""
    if stop.cancelled:
        return None
    tool = run.find(slot.call)
    if isinstance(tool, str):
        slot.fail(tool)
        return None
    try:
        arguments = tool.signature.check(tool.name, slot.call.arguments)
        run.begin(tool, arguments, slot, stop)
    except Exception as error:  # noqa: BLE001  # sorted there
        run.judge(error, slot, stop)
        return None
    begun = _Begun(tool, time.monotonic() + run.timeout(tool), SimpleQueue())
    stop.on_cancel(lambda _: begun.came.put(None))
    start(partial(run.blocking, tool, arguments), begun.came.put, f"tool {tool.name}")
    return begun


def _finish(run: Run, slot: Slot, stop: Cancellation, begun: _Begun, in_loop: InLoop) -> None:
    """Wait for it. What the wait raises is the caller's; what the tool raised is its result."""
    outcome = _wait(begun, stop)
    if outcome is None:
        return  # it was stopped; its thread is left behind
    value, error = outcome
    if error is not None:
        run.judge(error, slot, stop)
    elif value is not None:
        awaitable, content = value
        if awaitable is None:
            slot.answer(content)
        else:
            in_loop(partial(run.rest, slot, begun.tool, awaitable, stop, begun.left))


def _wait(begun: _Begun, stop: Cancellation) -> Outcome[tuple[Any, Json]] | None:
    try:
        return begun.came.get(timeout=min(begun.left, threading.TIMEOUT_MAX))
    except Empty:
        stop.cancel(Cause.TIMEOUT)
        return None
