"""What every provider must do, as checks to call from any test.

They need no test framework: each raises `AssertionError` with what was wrong. `check_answer` looks
at the items of one stream, `check_stops` at a stream that is left early, `check_failure` at one
that fails. Give them streams of your provider, of all the shapes that it knows.
"""

import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import assert_never

import anyio

from rejoinder.core.failures import FailureKind
from rejoinder.core.model import (
    Batch,
    CallDelta,
    PartDone,
    ReasoningDelta,
    Reply,
    StreamItem,
    TextDelta,
    UsageSoFar,
)
from rejoinder.core.parts import Part, ProviderBlock, Raw, Reasoning, Text, ToolCall, ToolResult
from rejoinder.providers.errors import ProviderError
from rejoinder.providers.silence import with_silence_limit


async def collect(stream: AsyncIterator[Batch], silence: float = 30.0) -> list[StreamItem]:
    """Every item that a stream yields, without its signs of life."""
    async with aclosing(with_silence_limit(stream, silence)) as batches:
        return [item async for batch in batches for item in batch]


def check_answer(items: Sequence[StreamItem]) -> Reply:
    """A complete answer: one reply, at the end; the deltas add up to its parts."""
    replies = [item for item in items if isinstance(item, Reply)]
    _require(len(replies) == 1, f"there are {len(replies)} replies, not one")
    reply = replies[0]
    _require(items[-1] is reply, "something comes after the reply")
    _check_done(items, reply)
    said = _said(items)
    shown = (*reply.parts, *reply.cut)
    _require(all(place < len(shown) for place in said), "a delta belongs to no part")
    for place, part in enumerate(shown):
        _check_part(place, part, said.get(place, ""), is_cut=place >= len(reply.parts))
    return reply


async def check_stops(
    stream: AsyncIterator[Batch], is_closed: Callable[[], bool], seconds: float = 10.0
) -> None:
    """A stream that is cancelled while it waits stops at once, raises no error and lets go.

    The stream must not end by itself; `is_closed` says whether its connection is gone.
    """
    with anyio.CancelScope() as scope, anyio.fail_after(seconds):
        async with aclosing(with_silence_limit(stream, seconds)) as batches:
            async for _ in batches:
                break
            async with anyio.create_task_group() as group:
                group.start_soon(_cancel, scope)
                async for _ in batches:
                    pass
    _require(scope.cancelled_caught, "the stream ended, or failed, instead of stopping")
    with anyio.fail_after(seconds):
        while not is_closed():  # noqa: ASYNC110  # whose event it is, is the provider's business
            await anyio.sleep(0.01)


async def check_failure(stream: AsyncIterator[Batch]) -> ProviderError:
    """A stream that fails does so with a `ProviderError` that can be shown, and has no reply."""
    try:
        items = await collect(stream)
    except ProviderError as error:
        failure = error.failure
        _require(failure.kind in set(FailureKind), f"{failure.kind!r} is no kind of failure")
        _require(bool(failure.message.strip()), "there is no sentence for people")
        _require(error.retry_after is None or error.retry_after > 0, "a wait must be positive")
        return error
    raise AssertionError(f"the stream did not fail; it yielded {len(items)} items")


async def _cancel(scope: anyio.CancelScope) -> None:
    await anyio.lowlevel.checkpoint()
    scope.cancel()


def _check_done(items: Iterable[StreamItem], reply: Reply) -> None:
    done: dict[int, Part] = {}
    for item in items:
        match item:
            case PartDone(index, part):
                _require(index not in done, f"part {index} was completed twice")
                done[index] = part
            case TextDelta(index) | ReasoningDelta(index) | CallDelta(index):
                _require(index not in done, f"part {index} goes on after it was completed")
            case UsageSoFar() | Reply():
                pass
            case _:
                assert_never(item)
    _require(done == dict(enumerate(reply.parts)), "the completed parts are not those of the reply")


def _said(items: Iterable[StreamItem]) -> dict[int, str]:
    said: defaultdict[int, list[str]] = defaultdict(list)
    for item in items:
        if isinstance(item, TextDelta | ReasoningDelta):
            said[item.index].append(item.text)
        elif isinstance(item, CallDelta):
            said[item.index].append(item.arguments)
    return {place: "".join(words) for place, words in said.items()}


def _check_part(place: int, part: Part, said: str, *, is_cut: bool) -> None:
    match part:
        case Text() | Reasoning():
            _require(said == part.text, f"the deltas of part {place} do not add up to it")
        case ToolCall():
            if is_cut or "INVALID_JSON" in part.arguments:
                return
            whole = json.loads(said) if said.strip() else {}
            _require(whole == part.arguments, f"the deltas of call {place} do not add up to it")
        case ToolResult() | ProviderBlock() | Raw():
            pass
        case _:
            assert_never(part)


def _require(holds: bool, otherwise: str) -> None:  # noqa: FBT001
    if not holds:
        raise AssertionError(otherwise)
