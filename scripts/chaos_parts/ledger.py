"""Tools that leave a trace outside of everything: one line per begin and end, in one file.

REJOINDER_TOOLS names this module, CHAOS_LEDGER the file. A line is one `write` to a file opened for
appending, so that processes do not mix theirs, and a killed one leaves no half of it.
"""

import faulthandler
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import anyio

from rejoinder.tools import ToolContext, celery_tool, tool
from rejoinder.tools.define import Approve

VARIABLE = "CHAOS_LEDGER"
SAY_STACKS = signal.SIGUSR2
"""Makes a process that loads these tools say what it is doing; children of prefork, too."""
if VARIABLE in os.environ:
    faulthandler.register(SAY_STACKS)
ASKED_SECONDS, AGREED_SECONDS = 6.0, 3.0
"""How long somebody may take to allow a call."""
OFFICE_SECONDS, BRIEF_SECONDS = 20.0, 3.0
"""How long the office may take to answer one."""
TASK_SECONDS = 15.0
"""How long another app's task may take, in a queue or at work."""
TASKS_QUEUE = "chaos.other"
NOBODY = "nobody was there"
CLIENT_TOOLS: list[dict[str, Any]] = [
    {"name": "ask_office", "description": "Ask the office.", "seconds": OFFICE_SECONDS},
    {
        "name": "ask_briefly",
        "description": "Ask the office, if somebody is there.",
        "seconds": BRIEF_SECONDS,
        "default": NOBODY,
    },
]
"""What a chat declares; the office answers."""


@tool
def ledger_once(context: ToolContext, nonce: str, seconds: float) -> str:
    """Do something that must not be done twice.

    Args:
        nonce: The name of this deed.
        seconds: How long it takes.
    """
    return _work(context, nonce, seconds)


@tool(approval=Approve(seconds=ASKED_SECONDS))
def ledger_asked(context: ToolContext, nonce: str, seconds: float, wish: str) -> str:
    """Do something that must not be done twice, nor without leave.

    Args:
        nonce: The name of this deed.
        seconds: How long it takes.
        wish: What the office will say.
    """
    del wish
    return _work(context, nonce, seconds)


@tool(idempotent=True, approval=Approve(seconds=AGREED_SECONDS, default=True))
def ledger_agreed(context: ToolContext, nonce: str, seconds: float, wish: str) -> str:
    """Do something that may be done again, unless somebody objects.

    Args:
        nonce: The name of this deed.
        seconds: How long it takes.
        wish: What the office will say.
    """
    del wish
    return _work(context, nonce, seconds)


@tool(idempotent=True)
async def ledger_again(context: ToolContext, nonce: str, seconds: float) -> str:
    """Do something that may be done again.

    Args:
        nonce: The name of this deed.
        seconds: How long it takes.
    """
    _note(context, "begin", nonce)
    await anyio.sleep(seconds)
    _note(context, "end", nonce)
    return done(nonce)


@tool(idempotent=True)
def quick(nonce: str, seconds: float = 0.0) -> str:
    """Answer at once.

    Args:
        nonce: The name of this deed.
        seconds: Not used.
    """
    del seconds
    return done(nonce)


_DEED: dict[str, Any] = {
    "type": "object",
    "properties": {"nonce": {"type": "string"}, "seconds": {"type": "number"}},
    "required": ["nonce", "seconds"],
    "additionalProperties": False,
}
task_once = celery_tool(
    "other.once",
    name="task_once",
    description="Have another app do something that must not be done twice.",
    schema=_DEED,
    queue=TASKS_QUEUE,
    timeout=TASK_SECONDS,
)
task_again = celery_tool(
    "other.again",
    name="task_again",
    description="Have another app do something that may be done again.",
    schema=_DEED,
    queue=TASKS_QUEUE,
    timeout=TASK_SECONDS,
    idempotent=True,
)
TOOLS = (ledger_once, ledger_asked, ledger_agreed, ledger_again, quick, task_once, task_again)


def done(nonce: str) -> str:
    """What a tool answers."""
    return f"done {nonce}"


def read(path: Path) -> list[dict[str, Any]]:
    """Every line of a ledger."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write(**line: Any) -> None:
    """Add a line."""
    data = {"at": time.time(), "pid": os.getpid(), **line}
    descriptor = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, json.dumps(data).encode() + b"\n")
    finally:
        os.close(descriptor)


def _work(context: ToolContext, nonce: str, seconds: float) -> str:
    _note(context, "begin", nonce)
    time.sleep(seconds)
    _note(context, "end", nonce)
    return done(nonce)


def _note(context: ToolContext, what: str, nonce: str) -> None:
    write(
        what=what,
        tool=context.tool,
        nonce=nonce,
        chat_id=str(context.chat_id),
        turn_id=str(context.turn_id),
        call_id=context.call_id,
    )
