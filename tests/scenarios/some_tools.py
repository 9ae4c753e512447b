"""Tools for scenarios."""

import os
import signal
import time
from pathlib import Path

import anyio

from rejoinder.tools import ToolContext, tool


@tool
def explode(reason: str) -> str:
    """Fail.

    Args:
        reason: what to say.
    """
    raise ValueError(reason)


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(timeout=60)
def hold(seconds: float, note: str) -> str:
    """Block a thread; not to be repeated.

    Args:
        seconds: for how long.
        note: where to note that it began and ended.
    """
    _note(note, "begin")
    time.sleep(seconds if _noted(note) == 1 else 0)
    _note(note, "end")
    return "held"


@tool(idempotent=True, timeout=60)
async def hold_async(seconds: float, note: str) -> str:
    """Wait; may be repeated.

    Args:
        seconds: for how long.
        note: where to note that it began and ended.
    """
    _note(note, "begin")
    await anyio.sleep(seconds if _noted(note) == 1 else 0)
    _note(note, "end")
    return "held"


@tool(timeout=60)
def watch(seconds: float, note: str, context: ToolContext) -> str:
    """Block a thread until nobody waits any more; not to be repeated.

    Args:
        seconds: for how long at most.
        note: where to note that it began, and why it stopped.
        context: who waits.
    """
    _note(note, "begin")
    end = time.monotonic() + seconds
    while not context.cancelled and time.monotonic() < end:
        time.sleep(0.02)
    _note(note, str(context.cause))
    return "watched"


@tool(idempotent=True, timeout=60)
async def watch_async(seconds: float, note: str, context: ToolContext) -> str:
    """Wait until nobody waits any more; may be repeated.

    Args:
        seconds: for how long at most.
        note: where to note that it began, and why it was cancelled.
        context: who waits.
    """
    _note(note, "begin")
    try:
        await anyio.sleep(seconds if _noted(note) == 1 else 0)
    except anyio.get_cancelled_exc_class():
        _note(note, str(context.cause))
        raise
    return "watched"


@tool
def kill_worker() -> str:
    """Kill the process that runs this tool."""
    os.kill(os.getpid(), signal.SIGKILL)
    return "still here"


def _note(path: str, word: str) -> None:
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(f"{word}\n")


def _noted(path: str) -> int:
    return Path(path).read_text(encoding="utf-8").count("begin")


@tool(timeout=120)
async def stubborn(seconds: float, note: str) -> str:
    """Wait, and do not let itself be cancelled.

    Args:
        seconds: for how long.
        note: where to note that it began and ended.
    """
    _note(note, "begin")
    with anyio.CancelScope(shield=True):
        await anyio.sleep(seconds)
    _note(note, "end")
    return "held"


@tool(timeout=120)
async def blocking(seconds: float, note: str) -> str:
    """Block the event loop, as no async tool should.

    Args:
        seconds: for how long.
        note: where to note that it began and ended.
    """
    _note(note, "begin")
    time.sleep(seconds)  # noqa: ASYNC251  # that is the point
    _note(note, "end")
    return "held"


@tool
def long_text(length: int) -> str:
    """Say a lot."""
    return "x" * length


@tool(timeout=60)
def wait_for(path: str, context: ToolContext) -> str:
    """Wait until a file is there.

    Args:
        path: where. A file beside it says that the wait has begun.
        context: who waits.
    """
    Path(f"{path}.begun").touch()
    while not (Path(path).exists() or context.cancelled):
        time.sleep(0.02)
    return "it is there"
