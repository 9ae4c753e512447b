"""The scripted provider: a model that says what a script tells it to. No key, no network.

`scripted:echo` plays a script of the library, `scripted:file:PATH` and `scripted:env:NAME` one from
elsewhere, and a script in the chat's own options (`extra["script"]`) comes before all. It keeps no
state: the conversation and the attempt in the request decide, so that any worker can go on.
"""

import json
import os
import uuid
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.lowlevel
from pydantic import ValidationError

from rejoinder.core.failures import FailureKind
from rejoinder.core.messages import Failure, Usage
from rejoinder.core.model import (
    Batch,
    CallDelta,
    ModelRequest,
    PartDone,
    Profile,
    PromptMessage,
    ReasoningDelta,
    Reply,
    StopReason,
    StreamItem,
    TextDelta,
)
from rejoinder.core.parts import Json, Part, Reasoning, Text, ToolCall, text_of
from rejoinder.providers.errors import ProviderError
from rejoinder.providers.script import CONTEXT_LIMIT, Call, Fail, Script, Step, chunks
from rejoinder.providers.script_library import LIBRARY
from rejoinder.providers.script_template import fill

MAX_OUTPUT_TOKENS = 32_000

_KINDS: Mapping[FailureKind, tuple[int | None, bool]] = {
    FailureKind.OVERLOADED: (529, True),
    FailureKind.RATE_LIMIT: (429, True),
    FailureKind.TIMEOUT: (None, True),
    FailureKind.STREAM_SILENCE: (None, True),
    FailureKind.AUTH: (401, False),
    FailureKind.MISSING_KEY: (None, False),
    FailureKind.CONFIG: (400, False),
    FailureKind.CONTEXT_LENGTH: (400, False),
    FailureKind.USAGE_LIMIT: (400, False),
    FailureKind.CONTENT_FILTER: (None, False),
    FailureKind.GENERIC: (500, True),
}
"""What a kind of failure looks like unless the script says otherwise: status, retryable."""


class ScriptedProvider:
    """Plays scripts. One object serves any number of chats at once."""

    name = "scripted"

    def __init__(self, scripts: Mapping[str, Json] | None = None) -> None:
        """Know these scripts by name, beside the library's."""
        self._scripts = {**LIBRARY, **(scripts or {})}

    def profile(self, model: str) -> Profile:
        """What the script says of its context and of titles; the rest is the same for all."""
        try:
            script = self._script(model, {})
        except ProviderError:  # it has its script in the options, or will fail when it is asked
            return Profile(CONTEXT_LIMIT, MAX_OUTPUT_TOKENS, thinking=True, titles=False)
        return Profile(script.context_limit, MAX_OUTPUT_TOKENS, thinking=True, titles=script.titles)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Batch, None]:
        """Play the step that the conversation has come to."""
        script = self._script(request.model, request.options.extra)
        step, where = script.choose(request.messages)
        if step is None:
            raise _misconfigured(f"The script is over: it has no {where}")
        fail = step.failure(request.attempt)
        if step.delay:
            await anyio.sleep(step.delay)
        parts: list[Part] = []
        cut: list[Part] = []
        played = 0
        for item in _items(step, request.messages):
            if isinstance(item, PartDone):
                if _is_cut(step, item):
                    cut.append(item.part)
                    continue
                parts.append(item.part)
            else:
                if fail is not None and fail.after == played:
                    break
                await _wait(step, played)
                played += 1
            yield (item,)
        if fail is not None:
            if fail.kind == "truncated":
                return
            raise _failure(fail, where)
        if step.hang_after is not None:
            await anyio.sleep_forever()
        request_id = f"scripted, {where}, attempt {request.attempt + 1}"
        yield (replace(_reply(step, parts, request), request_id=request_id, cut=tuple(cut)),)

    async def aclose(self) -> None:
        """Nothing to close."""

    def _script(self, model: str, extra: Mapping[str, Json]) -> Script:
        data: object
        if "script" in extra:
            where, data = "the chat's options", extra["script"]
        elif model.startswith("file:"):
            where, data = model, _parsed(model, _read(model.removeprefix("file:")))
        elif model.startswith("env:"):
            where, data = model, _parsed(model, os.environ.get(model.removeprefix("env:"), ""))
        elif model in self._scripts:
            where, data = model, self._scripts[model]
        else:
            known = ", ".join(sorted(self._scripts))
            raise _misconfigured(f"There is no script {model!r}; there are: {known}")
        try:
            return Script.model_validate(data)
        except ValidationError as error:
            raise _misconfigured(f"The script in {where} is not valid", str(error)) from error


async def _wait(step: Step, played: int) -> None:
    if step.hang_after is not None and played >= step.hang_after:
        await anyio.sleep_forever()
    if step.pace and played:
        await anyio.sleep(step.pace)
    else:
        await anyio.lowlevel.checkpoint()  # so that a stop is heard between any two chunks


def _items(step: Step, messages: Sequence[PromptMessage]) -> Iterator[StreamItem]:
    """Everything that the step streams, but for its end."""
    index = 0
    if step.thinking:
        thinking = str(fill(step.thinking, messages))
        for piece in chunks(thinking, step.chunk):
            yield ReasoningDelta(index, piece)
        yield PartDone(index, Reasoning(thinking, signature="scripted"))
        index += 1
    if step.text:
        text = str(fill(step.text, messages))
        for piece in chunks(text, step.chunk):
            yield TextDelta(index, piece)
        yield PartDone(index, Text(text))
        index += 1
    for call in step.calls:
        yield from _call(index, call, messages)
        index += 1


def _call(index: int, call: Call, messages: Sequence[PromptMessage]) -> Iterator[StreamItem]:
    arguments = fill(call.arguments, messages)
    call_id = call.id or f"call_{uuid.uuid4().hex[:16]}"  # like a real one: new at every attempt
    written = json.dumps(arguments, ensure_ascii=False)
    half = len(written) // 2
    yield CallDelta(index, call_id, call.name)
    yield CallDelta(index, call_id, call.name, written[:half])
    yield CallDelta(index, call_id, call.name, written[half:])
    yield PartDone(index, ToolCall(call_id, call.name, arguments))


def _is_cut(step: Step, done: PartDone) -> bool:
    """Whether the output limit came before the end of this call."""
    last = bool(step.thinking) + bool(step.text) + len(step.calls) - 1
    return step.stop is StopReason.MAX_TOKENS and bool(step.calls) and done.index == last


def _reply(step: Step, parts: Sequence[Part], request: ModelRequest) -> Reply:
    stop = step.stop or (StopReason.TOOL_USE if step.calls else StopReason.END)
    if step.usage is None:
        usage = Usage(
            input_tokens=_tokens("".join(text_of(m.parts) for m in request.messages)),
            output_tokens=_tokens(text_of(parts) + step.thinking),
        )
    else:
        usage = Usage(**step.usage.model_dump())
    return Reply(tuple(parts), stop, usage, request.model)


def _tokens(text: str) -> int:
    return 1 + len(text) // 4


def _failure(fail: Fail, where: str) -> BaseException:
    if not isinstance(fail.kind, FailureKind):
        return RuntimeError(fail.message or "a scripted bug")
    status, retryable = _KINDS.get(fail.kind, (None, False))
    failure = Failure(
        kind=fail.kind.value,
        message=fail.message or f"The scripted model failed ({fail.kind}).",
        detail=f"{where} of the script",
        provider="scripted",
        status_code=status if fail.status is None else fail.status,
        request_id="scripted-failure",
        retryable=retryable if fail.retryable is None else fail.retryable,
    )
    return ProviderError(failure, fail.retry_after)


def _misconfigured(message: str, detail: str | None = None) -> ProviderError:
    return ProviderError(
        Failure(FailureKind.CONFIG.value, message, detail, provider="scripted"), None
    )


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise _misconfigured(f"The script {path!r} cannot be read: {error}") from error


def _parsed(where: str, text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise _misconfigured(f"The script in {where} is no JSON", str(error)) from error
