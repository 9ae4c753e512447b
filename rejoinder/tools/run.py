"""Running the tool calls of one assistant message: all at once, results in call order.

Whatever goes wrong in one call is an error result of that call, in words for the model; the others
do not notice. When the step's `Cancellation` fires, async tools are cancelled and blocking ones are
left behind; `Ran` says which results are there and which calls have none. Nothing here knows rows.
"""

import asyncio
import inspect
import logging
import threading
from asyncio import CancelledError
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

import anyio

from rejoinder.core.cancellation import Cancellation
from rejoinder.core.effects import Cause
from rejoinder.core.parts import Json, ToolCall, ToolResult
from rejoinder.tools.cap import cap, readable, result_limit
from rejoinder.tools.context import ToolContext
from rejoinder.tools.define import FunctionTool, ToolError
from rejoinder.tools.registry import Registry
from rejoinder.tools.results import ResultError, content_of
from rejoinder.tools.schema import ArgumentsError
from rejoinder.tools.threads import ToolExit, abandoned, in_thread

DEFAULT_TIMEOUT = 300.0
MAX_THREADS = 32
"""Blocking tools of one message that run at once; further ones wait for their turn."""

MAX_ABANDONED = 50
"""Calls of a process that nobody waits for any more; with so many, no further tool that blocks is
started. Those that run already may still be added to them."""

_log = logging.getLogger(__name__)

MakeContext = Callable[[ToolCall, Cancellation], ToolContext]
"""Given a call that begins and its own cancellation (the step's, or its time is up), its context.
Not called for a call that is refused before it begins."""


@dataclass(frozen=True)
class Ran:
    """How the calls of one message ended."""

    results: tuple[ToolResult, ...]
    """What finished, in call order."""
    unfinished: tuple[str, ...] = ()
    """Ids of calls without a result, in call order. Empty unless there is a cause."""
    untouched: tuple[str, ...] = ()
    """Those among the unfinished that never began: to run them again is safe."""
    cause: Cause | None = None
    """Why there are unfinished calls."""


@dataclass
class Slot:
    """A call, and what has become of it."""

    call: ToolCall
    begun: bool = False
    result: ToolResult | None = None
    escaped: BaseException | None = None
    """Not ours to answer. It is raised by the caller's task: asyncio ends the whole event loop when
    a task of its own lets a SystemExit or KeyboardInterrupt go."""

    def answer(self, content: Json) -> None:
        """Give it its result."""
        self.result = ToolResult(self.call.call_id, content)

    def fail(self, message: str) -> None:
        """Give it an error for a result."""
        self.result = ToolResult(self.call.call_id, readable(message), is_error=True)


async def run_calls(run: "Run", calls: Sequence[ToolCall], max_threads: int = MAX_THREADS) -> Ran:
    """Run the calls concurrently and wait for all, or until the cancellation fires.

    Only what is no `Exception` leaves this function: a cancellation of the task it runs in, a
    KeyboardInterrupt, a `Cancelled` that is not about these calls.
    """
    slots = [Slot(call) for call in calls]
    threads = anyio.CapacityLimiter(max_threads)
    async with anyio.create_task_group() as group:
        for slot in slots:
            group.start_soon(run.answer, slot, threads, group.cancel_scope)
    return run.ran(slots)


@dataclass(frozen=True, kw_only=True)
class Run:
    """How the calls of one message are run."""

    registry: Registry
    make_context: MakeContext
    cancellation: Cancellation
    active: Collection[str] | None = None
    """Every other tool is refused; None: none is."""
    default_timeout: float = DEFAULT_TIMEOUT
    max_abandoned: int = MAX_ABANDONED
    context_limit: int | None = None
    on_result: Callable[[ToolResult], None] | None = None
    """Told each result as soon as it is there, in the event loop."""

    @property
    def limit(self) -> int:
        """How long a result may be."""
        return result_limit(self.context_limit)

    async def answer(
        self, slot: Slot, threads: anyio.CapacityLimiter, siblings: anyio.CancelScope
    ) -> None:
        """Give the slot a result, unless it is cancelled before."""
        stop = Cancellation()
        with anyio.CancelScope() as scope, _stopped_by(self.cancellation, stop, scope):
            try:
                await self._attempt(slot, stop, threads)
            except BaseException as error:
                if isinstance(error, CancelledError) and _is_cancelled():
                    raise
                self._judge(error, slot, stop)
        if slot.escaped is not None:
            siblings.cancel()
            return
        if slot.result is None and stop.cause is Cause.TIMEOUT:
            slot.fail(self._timed_out(slot.call.name))
        if slot.result is not None:
            self._report(slot.result)

    def ran(self, slots: Sequence[Slot]) -> Ran:
        """How they ended; raises what is not ours to answer."""
        for slot in slots:
            if slot.escaped is not None:
                raise slot.escaped
        without = [slot for slot in slots if slot.result is None]
        return Ran(
            results=tuple(slot.result for slot in slots if slot.result is not None),
            unfinished=tuple(slot.call.call_id for slot in without),
            untouched=tuple(slot.call.call_id for slot in without if not slot.begun),
            cause=self.cancellation.cause if without else None,
        )

    async def _attempt(
        self, slot: Slot, stop: Cancellation, threads: anyio.CapacityLimiter
    ) -> None:
        if stop.cancelled:
            return
        tool = self._find(slot.call)
        if isinstance(tool, str):
            slot.fail(tool)
            return
        arguments = tool.signature.check(tool.name, slot.call.arguments)
        if tool.is_async:
            content = await self._call(tool, arguments, slot, stop)
        else:
            async with threads:
                if self.cancellation.cancelled:
                    return  # the thread it waited for was freed by the very cancellation
                if (refusal := self._no_thread(tool.name)) is not None:
                    slot.fail(refusal)
                    return
                content = await self._call(tool, arguments, slot, stop)
        slot.answer(content)

    async def _call(
        self,
        tool: FunctionTool[..., Any],
        arguments: dict[str, Any],
        slot: Slot,
        stop: Cancellation,
    ) -> Json:
        slot.begun = True
        context = self.make_context(slot.call, stop)
        if tool.signature.context is not None:
            arguments[tool.signature.context] = context
        with _timer(self._timeout(tool), stop):
            if tool.is_async:
                awaitable: Any = tool.function(**arguments)
            else:
                blocking = partial(self._blocking, tool, arguments)
                awaitable, content = await in_thread(blocking, f"tool {tool.name}")
                if awaitable is None:
                    return content
            return self._content(tool, await awaitable)

    def _blocking(
        self, tool: FunctionTool[..., Any], arguments: dict[str, Any]
    ) -> tuple[object, Json]:
        """Call a tool that blocks, in a thread of its own: what to await, or its content."""
        value = tool.function(**arguments)
        if inspect.isawaitable(value):  # a coroutine function behind a plain wrapper
            return value, None
        return None, self._content(tool, value)

    def _content(self, tool: FunctionTool[..., Any], value: object) -> Json:
        """What the model reads of what a tool returned."""
        nothing = "ok" if tool.signature.returns_nothing else "null"
        return content_of(value, self.limit, nothing=nothing)

    def _judge(self, error: BaseException, slot: Slot, stop: Cancellation) -> None:
        """Turn what a tool raised into its result, or let it go on."""
        name = slot.call.name
        exits = isinstance(error, SystemExit)
        if isinstance(error, KeyboardInterrupt | GeneratorExit) or (exits and _in_main_thread()):
            slot.escaped = error  # a signal, perhaps
        elif isinstance(error, CancelledError):
            slot.fail(f"{name} was cancelled from within, by what it waited for.")
        elif stop.cancelled:
            pass  # it broke off because it was told to: no result
        elif isinstance(error, ToolError | ArgumentsError | ResultError):
            slot.fail(cap(readable(str(error)), self.limit))
        elif isinstance(error, Exception) or exits:
            ids = {"call_id": slot.call.call_id, "tool": name}
            _log.error("tool %s failed", name, exc_info=error, extra=ids)
            slot.fail(cap(readable(_told(error)), self.limit))
        else:
            slot.escaped = error

    def _find(self, call: ToolCall) -> FunctionTool[..., Any] | str:
        """The tool to run, or why there is none."""
        name = call.name
        tool = self.registry.get(name)
        usable = [n for n in self.registry.names if self.active is None or n in self.active]
        there_are = f"there are: {', '.join(usable)}" if usable else "there are none"
        if tool is None:
            return f"There is no tool {name}; {there_are}."
        if name not in usable:
            return f"The tool {name} is not active in this turn; {there_are}."
        if not isinstance(tool, FunctionTool):
            return tool.objection(call) or f"The tool {name} is not one that a worker can run."
        return tool

    def _no_thread(self, name: str) -> str | None:
        """Why a tool that blocks cannot be started now, if it cannot."""
        left = abandoned()
        if left.total() < self.max_abandoned:
            return None
        which = ", ".join(f"{each} ({count})" for each, count in left.most_common())
        _log.warning("tool %s is refused: too many calls do not return: %s", name, which)
        return (
            f"{name} was not run: {left.total()} earlier tool calls on this worker have not"
            " returned, and it starts no more of this kind until some do. Try again later, or go"
            " on without it."
        )

    def _timeout(self, tool: FunctionTool[..., Any]) -> float:
        """How long it may take."""
        return self.default_timeout if tool.timeout is None else tool.timeout

    def _timed_out(self, name: str) -> str:
        tool = self.registry.get(name)
        assert isinstance(tool, FunctionTool)  # noqa: S101  # only such a call has a timer
        after = (
            "it was cancelled; what it had done by then stays done"
            if tool.is_async
            else "it may still be running"
        )
        return f"{name} timed out after {self._timeout(tool):g} s; {after}."

    def _report(self, result: ToolResult) -> None:
        if self.on_result is None:
            return
        try:
            self.on_result(result)
        except Exception:  # noqa: BLE001  # a listener's fault never becomes the call's
            _log.exception("the result of call %s was not told", result.call_id)


@contextmanager
def _stopped_by(step: Cancellation, stop: Cancellation, scope: anyio.CancelScope) -> Iterator[None]:
    """Let the step's cancellation fire the call's, and the call's cancel the scope."""
    loop = asyncio.get_running_loop()
    inside = True

    def close() -> None:
        if inside:
            scope.cancel()

    def wake(_cause: Cause) -> None:
        with suppress(RuntimeError):  # the loop is gone: nothing is left to cancel
            loop.call_soon_threadsafe(close)

    def pass_on(cause: Cause) -> None:
        stop.cancel(cause)

    stop.on_cancel(wake)
    forget = step.on_cancel(pass_on)
    try:
        yield
    finally:
        inside = False
        forget()


@contextmanager
def _timer(seconds: float, stop: Cancellation) -> Iterator[None]:
    if seconds == inf:
        yield
        return
    timer = asyncio.get_running_loop().call_later(seconds, stop.cancel, Cause.TIMEOUT)
    try:
        yield
    finally:
        timer.cancel()


def _told(error: BaseException) -> str:
    """An exception in one line for the model: its type and message, nothing of our insides."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if isinstance(error, ToolError | ToolExit):
        return str(error)
    try:
        message = str(error)
    except Exception:  # noqa: BLE001  # its own __str__ is broken
        message = ""
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _is_cancelled() -> bool:
    """Whether a cancellation is the task's own, not one of something that it waited for."""
    return anyio.current_effective_deadline() == -inf


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
