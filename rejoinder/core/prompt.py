"""What the model is shown: a prompt that is valid whatever history holds.

History is never changed here; it heals on the way out. Empty and poisoned parts go, calls and
results are paired, blocks of another provider stay at home, and what may be cached is marked.
Assembling an assembled prompt changes nothing. What one provider's API wants beyond this is in its
own file under `rejoinder/providers`.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from operator import is_
from typing import NamedTuple, Protocol, assert_never

from rejoinder.core.kept import Kept
from rejoinder.core.messages import Role
from rejoinder.core.model import PromptMessage, StopReason, ToolSpec
from rejoinder.core.parts import (
    Part,
    ProviderBlock,
    Raw,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    open_calls,
)

NO_RESULT = "There is no result: the call was interrupted before it finished."
EARLIER = "(The conversation before this point is not shown.)"
CONTINUE = "Continue."

READERS = 16
"""Models for which healed messages are kept."""
_SYSTEM, _ASSISTANT, _TOOL = Role.SYSTEM, Role.ASSISTANT, Role.TOOL
"""At hand: an enum takes longer to find one than all else that is done with most messages."""
_OURS = frozenset({"text", "reasoning", "tool_call", "tool_result", "provider_block"})
_RELEASE = re.compile(r"(-latest|-0|[-@]\d{8})$")


class Spoken(Protocol):
    """A message of history, or of a prompt."""

    @property
    def role(self) -> Role:
        """Who speaks."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """What is said."""

    @property
    def model(self) -> str | None:
        """The model that said it, as `provider:model`."""

    @property
    def stop(self) -> str | None:
        """Why it stopped there."""


class _Reader(NamedTuple):
    """Whom the prompt is for."""

    provider: str
    family: str | None

    def produced(self, model: str | None) -> tuple[bool, bool]:
        """Whether its provider, and a model of its family, said this; unknown is a stranger."""
        provider, _, name = (model or "").partition(":")
        ours = provider == self.provider
        return ours, ours and self.family in (None, _family(name))


def assemble(
    history: Iterable[Spoken], provider: str, *, model: str | None = None, caching: bool = False
) -> tuple[PromptMessage, ...]:
    """The prompt for a provider's model (without a model, its families are not told apart)."""
    reader = _Reader(provider, None if model is None else _family(model))
    kept = _kept_for(reader)
    healed = [m for m in kept.all(history, partial(_healed, reader=reader)) if m.parts]
    system = [m for m in healed if m.role is _SYSTEM]
    talk = [*_paired([m for m in healed if m.role is not _SYSTEM])]
    if not talk or talk[0].role is not Role.USER:
        talk.insert(0, PromptMessage(Role.USER, (Text(EARLIER),)))
    if _needs_an_answer(talk[-1]):
        talk.append(PromptMessage(Role.USER, (Text(CONTINUE),)))
    marks = _marks(len(system), len(system) + len(talk)) if caching else frozenset[int]()
    return tuple(
        replace(m, cached=True) if n in marks else m for n, m in enumerate((*system, *talk))
    )


def active_tools(
    tools: Iterable[ToolSpec], names: Collection[str] | None = None
) -> tuple[ToolSpec, ...]:
    """The tools that this turn may use (None: all), each once, in an order that never changes."""
    known = {tool.name: tool for tool in tools if names is None or tool.name in names}
    return tuple(known[name] for name in sorted(known))


def _family(model: str) -> str:
    """A model without its release: aliases and dated names of one model are the same."""
    return _RELEASE.sub("", model.strip().lower())


def _marks(system: int, total: int) -> frozenset[int]:
    """What may be cached: the system block's last message, and the last two of all."""
    return frozenset({system - 1, total - 2, total - 1}) - {-1, -2}


def _needs_an_answer(last: PromptMessage) -> bool:
    """Whether an assistant has the last word, and did not ask to go on."""
    if last.role is not Role.ASSISTANT or last.stop == StopReason.PAUSE:
        return False
    end = last.parts[-1]
    return not (isinstance(end, ToolCall | ProviderBlock))


@lru_cache(maxsize=READERS)
def _kept_for(_: _Reader) -> Kept[PromptMessage]:
    """Messages as a reader is shown them, the same objects each time: so others can keep them."""
    return Kept()


def _healed(message: Spoken, reader: _Reader) -> PromptMessage:
    """The parts of a message that its role may say and that its reader can take."""
    parts = [_recognised(part) for part in message.parts]
    ours, same = reader.produced(message.model)
    match message.role:
        case Role.SYSTEM:
            kept: Iterable[Part] = (p for p in parts if _is_said(p))
        case Role.USER:
            kept = (p for p in parts if _is_said(p) or _is_block(p))
        case Role.TOOL:
            kept = (p for p in parts if isinstance(p, ToolResult))
        case Role.ASSISTANT:
            kept = _trimmed([*_answer(parts, reader, ours=ours, same=same)])
        case _:
            assert_never(message.role)
    stop = message.stop if ours else None
    return PromptMessage(message.role, tuple(kept), model=message.model, stop=stop)


def _is_said(part: Part) -> bool:
    return isinstance(part, Text) and bool(part.text.strip())


def _trimmed(parts: Sequence[Part]) -> Sequence[Part]:
    """Without white space at either end; between thoughts it belongs to what was signed."""
    said = [n for n, part in enumerate(parts) if not isinstance(part, Text) or _is_said(part)]
    return parts[said[0] : said[-1] + 1] if said else ()


def _is_block(part: Part) -> bool:
    """A content block that a user may send, such as an image; only its provider can judge it."""
    return isinstance(part, Raw) and isinstance(part.data.get("type"), str)


def _recognised(part: Part) -> Part:
    """A part as it was meant. A row of ours that is damaged heals, or becomes an empty text."""
    if isinstance(part, ToolCall) and not isinstance(part.arguments, Mapping):
        return replace(part, arguments={})  # a type is no proof here
    if not isinstance(part, Raw) or part.data.get("type") not in _OURS:
        return part
    data = part.data
    match data:
        case {"type": "text", "text": str(text)}:
            return Text(text)
        case {"type": "tool_call", "call_id": str(call_id), "name": str(name)}:
            arguments = data.get("arguments")
            run_there = data.get("provider_executed") is True
            found = arguments if isinstance(arguments, Mapping) else {}
            return ToolCall(call_id, name, found, provider_executed=run_there)
        case {"type": "tool_result", "call_id": str(call_id)}:
            return ToolResult(call_id, data.get("content"), is_error=data.get("is_error") is True)
        case _:
            return Text("")


def _answer(parts: Iterable[Part], reader: _Reader, *, ours: bool, same: bool) -> Iterator[Part]:
    """What of an assistant's message can go back to this reader."""
    run_there: set[str] = set()
    for part in parts:
        match part:
            case Text():
                keep = bool(part.text) if same else _is_said(part)
            case Reasoning():
                keep = same and bool(part.signature)  # unsigned, nobody can check it
            case ToolCall(provider_executed=True):
                keep = ours
                run_there.add(part.call_id)
            case ToolCall():
                keep = bool(part.call_id and part.name)
            case ToolResult():
                keep = ours and part.call_id in run_there
            case ProviderBlock():
                keep = part.provider == reader.provider
            case Raw():
                keep = False
            case _:
                assert_never(part)
        if keep:
            yield part if ours else _plain(part)


def _plain(part: Part) -> Part:
    """The same without what only its provider understands."""
    if isinstance(part, Text | ToolCall) and part.extra is not None:
        return replace(part, extra=None)
    return part


def _paired(talk: Sequence[PromptMessage]) -> Iterator[PromptMessage]:
    """Every call answered directly after its message, in call order; nothing answered twice.

    What is in order already comes out as the object that it was.
    """
    results: defaultdict[str, list[tuple[int, ToolResult]]] = defaultdict(list)
    for place, message in enumerate(talk):
        if message.role is _TOOL:
            for part in message.parts:
                if isinstance(part, ToolResult):
                    results[part.call_id].append((place, part))
    called: set[str] = set()
    for place, message in enumerate(talk):
        if message.role is _TOOL:
            continue  # each result goes to its call; what is left belongs to none
        if message.role is not _ASSISTANT or not _has_call(message.parts):
            yield message
            continue
        told = tuple(_new(message.parts, called, results, place))
        if parts := _trimmed([part for part, _ in told]):
            yield _with(message, parts)
        if calls := [(p, id_) for p, id_ in told if open_calls([p])]:
            found = [
                _answering(call.call_id, _result(id_, place, results[id_]))
                for call, id_ in calls
                if isinstance(call, ToolCall)
            ]
            after = talk[place + 1 : place + 2]
            tool = [m for m in after if m.role is _TOOL] or [PromptMessage(_TOOL, ())]
            yield _with(tool[0], found)


def _has_call(parts: Iterable[Part]) -> bool:
    for part in parts:  # noqa: SIM110  # `any` takes three times as long, for every message
        if isinstance(part, ToolCall):
            return True
    return False


def _with(message: PromptMessage, parts: Sequence[Part]) -> PromptMessage:
    same = len(parts) == len(message.parts) and all(map(is_, parts, message.parts))
    return message if same else replace(message, parts=tuple(parts))


def _answering(call_id: str, result: ToolResult) -> ToolResult:
    return result if result.call_id == call_id else replace(result, call_id=call_id)


def _new(
    parts: Iterable[Part],
    called: set[str],
    results: Mapping[str, Sequence[tuple[int, ToolResult]]],
    place: int,
) -> Iterator[tuple[Part, str]]:
    """The parts, each call with an id that no other has, and the id under which history knows it.

    An id may be used once in a prompt, and some models count from one again in every message. What
    was called before and is not answered after this goes: it is the same call again.
    """
    here: set[str] = set()
    for part in parts:
        if not isinstance(part, ToolCall):
            yield part, ""
            continue
        again = part.call_id in called
        given = results.get(part.call_id, ()) if again and not part.provider_executed else ()
        renamed = bool(given) and given[-1][0] > place
        if part.call_id in here or (again and not renamed):
            continue
        here.add(part.call_id)
        fresh, number = part.call_id, 1
        while fresh in called:
            number += 1
            fresh = f"{part.call_id}_{number}"
        called.add(fresh)
        yield part if fresh == part.call_id else replace(part, call_id=fresh), part.call_id


def _result(call_id: str, place: int, found: Iterable[tuple[int, ToolResult]]) -> ToolResult:
    """The first result after the call, wherever it stands; else an honest substitute."""
    given = (result for after, result in found if after > place)
    return next(given, ToolResult(call_id, NO_RESULT, is_error=True))
