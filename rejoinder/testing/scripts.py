"""Builders of scripts: what a scripted model says, written as Python, kept as JSON.

`[call("weather", city="Bonn"), say("It is {result}.")]` is a script: a plain list of plain
dictionaries, which can travel to another process. The format is in `rejoinder.providers.script`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from rejoinder.core.parts import Json
from rejoinder.providers.script import Script

StepData: TypeAlias = dict[str, Any]
ScriptData: TypeAlias = Sequence[StepData | Sequence[StepData]] | Mapping[str, Any]


def say(text: str, *, delay: float = 0, pace: float = 0, chunk: int | None = None) -> StepData:
    """Say a text, in words (or in chunks of so many characters).

    `{user}` stands for the user's last message, `{result}` for the tool's result, `{results}` for
    all of them, `{result:weather.celsius}` for a field of one. `delay`: seconds before the first
    chunk; `pace`: seconds between two.
    """
    return _given(text=text, delay=delay, pace=pace, chunk=chunk)


def think(text: str) -> StepData:
    """Think, before anything is said."""
    return {"thinking": text}


def call(
    name: str,
    arguments: Mapping[str, Json] | None = None,
    /,
    *,
    call_id: str | None = None,
    **more: Json,
) -> StepData:
    """Ask for a tool: `call("weather", city="Bonn")`.

    Several at once: `together(call(…), call(…))`.
    """
    given = _given(name=name, arguments={**(arguments or {}), **more}, id=call_id)
    return {"calls": [{"name": name, **given}]}


def fail(  # noqa: PLR0913  # all but one are named
    kind: str = "overloaded",
    *,
    times: int | None = 1,
    after: int = 0,
    status: int | None = None,
    retryable: bool | None = None,
    retry_after: float | None = None,
    message: str | None = None,
) -> StepData:
    """Fail so many attempts (None: all) at the step that follows, each after so many chunks.

    `kind` is one of `FailureKind`, or "truncated" (the stream ends without its end), or "bug"
    (an exception that no provider should raise). Alone at the end of a script it always fails.
    """
    details = {
        "status": status,
        "retryable": retryable,
        "retry_after": retry_after,
        "message": message,
    }
    given = {name: value for name, value in details.items() if value is not None}
    return {"fail": [{"kind": kind, "times": times, "after": after, **given}]}


def hang(after: int = 0) -> StepData:
    """Fall silent for ever, after so many chunks: something to stop."""
    return {"hang_after": after}


def end(stop: str | None = None, **usage: int) -> StepData:
    """How the step ends: `end("max_tokens")`, `end(input_tokens=10, output_tokens=5)`."""
    return _given(stop=stop, usage=usage)


def together(*steps: StepData) -> StepData:
    """One step of several: `together(think("…"), say("…"), call("a"), call("b"))`."""
    merged: StepData = {}
    for step in steps:
        for key, value in step.items():
            adds = key in merged and isinstance(value, list | str)
            merged[key] = merged[key] + value if adds else value
    return merged


def play(script: ScriptData) -> dict[str, Json]:
    """Check a script; the result goes into a chat's options as `extra`, for a `scripted:` model."""
    Script.model_validate(script)
    data: Any = script
    return {"script": data}


def _given(**values: Any) -> StepData:  # JSON of many kinds
    return {name: value for name, value in values.items() if value}
