"""`rejoinder show CHAT --steps`: where the time of a chat's steps went."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from rejoinder.client import Client

COLUMNS = ("claim", "load", "model", "tools", "write")
PAGE = 200


def steps_of(client: Client, chat_id: str) -> list[Mapping[str, Any]]:
    """All of them, oldest first."""
    page = client.get_steps(chat_id, limit=PAGE)
    found: list[Mapping[str, Any]] = page["steps"]
    while page["next"] is not None:
        page = client.get_steps(chat_id, before=page["next"], limit=PAGE)
        found += page["steps"]
    return found[::-1]


def lines(steps: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A table: a line for each step, with milliseconds and tokens."""
    if not steps:
        yield "No step has ended yet."
        return
    spent = "".join(f"{name:>9}" for name in COLUMNS)
    yield f"{'began':12} {'outcome':17}{'all ms':>9}{spent}{'in':>8}{'out':>7}  worker, task"
    yield from map(_line, steps)


def _line(step: Mapping[str, Any]) -> str:
    attempt = f" ({step['attempt'] + 1})" if step["attempt"] else ""
    spent = "".join(_number(step[f"{name}_ms"], 9) for name in COLUMNS)
    tokens = _number(step["input_tokens"], 8, 0) + _number(step["output_tokens"], 7, 0)
    return (
        f"{step['began_at'][11:23]} {step['outcome'] + attempt:17}{_number(_total(step), 9)}"
        f"{spent}{tokens}  {step['worker']}, {step['task_id']}"
    )


def _total(step: Mapping[str, Any]) -> float:
    began, ended = (datetime.fromisoformat(step[name]) for name in ("began_at", "ended_at"))
    return (ended - began).total_seconds() * 1000


def _number(value: float | None, width: int, digits: int = 1) -> str:
    return f"{'-':>{width}}" if value is None else f"{value:>{width}.{digits}f}"
