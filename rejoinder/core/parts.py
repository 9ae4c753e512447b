"""The typed parts a message consists of, and their JSON form.

A closed union: code that looks at parts ends its `match` with `assert_never`. What we do not know
(a newer provider's block, a newer release's part) is kept verbatim as `Raw` and goes back out
unchanged. Text may hold anything a `str` can, NUL and lone surrogates included.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from rejoinder.core.errors import Rejected

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"


@dataclass(frozen=True)
class Text:
    """Words for people or for the model. `extra`: what else its block held, e.g. citations."""

    text: str
    extra: Mapping[str, Json] | None = None
    type: Literal["text"] = "text"


@dataclass(frozen=True)
class Reasoning:
    """The model's thinking; `signature` must go back to the provider untouched."""

    text: str
    signature: str | None = None
    extra: Mapping[str, Json] | None = None
    type: Literal["reasoning"] = "reasoning"


@dataclass(frozen=True)
class ToolCall:
    """The model asks for a tool. A call the provider executes itself is never open for us."""

    call_id: str
    name: str
    arguments: Mapping[str, Json]
    provider_executed: bool = False
    extra: Mapping[str, Json] | None = None
    type: Literal["tool_call"] = "tool_call"


@dataclass(frozen=True)
class ToolResult:
    """The answer to one tool call: a text, a JSON value, or a list of content blocks."""

    call_id: str
    content: Json
    is_error: bool = False
    type: Literal["tool_result"] = "tool_result"


@dataclass(frozen=True)
class ProviderBlock:
    """A block that only its provider understands, kept verbatim and sent back to it alone."""

    provider: str
    block: Mapping[str, Json]
    type: Literal["provider_block"] = "provider_block"


@dataclass(frozen=True)
class Raw:
    """A part of a kind this release does not know, kept as it came."""

    data: Mapping[str, Json]


Known: TypeAlias = Text | Reasoning | ToolCall | ToolResult | ProviderBlock
Part: TypeAlias = Known | Raw

_FIELDS: Mapping[str, tuple[type[Known], set[str], set[str]]] = {
    "text": (Text, {"text"}, {"extra"}),
    "reasoning": (Reasoning, {"text"}, {"signature", "extra"}),
    "tool_call": (ToolCall, {"call_id", "name", "arguments"}, {"provider_executed", "extra"}),
    "tool_result": (ToolResult, {"call_id", "content"}, {"is_error"}),
    "provider_block": (ProviderBlock, {"provider", "block"}, set()),
}


_KEPT = {"content"}  # null is a value there, elsewhere it is an absence


def to_json(part: Part) -> dict[str, Json]:
    """The stored form of a part."""
    if isinstance(part, Raw):
        return dict(part.data)
    return {name: value for name, value in vars(part).items() if value is not None or name in _KEPT}


def from_json(data: Mapping[str, Json]) -> Part:
    """The part a stored form stands for. Never fails: what does not fit stays `Raw`."""
    kind, required, optional = _FIELDS.get(str(data.get("type")), (None, set[str](), set[str]()))
    names = set(data) - {"type"}
    if kind is None or not required <= names <= required | optional or not _typed(data):
        return Raw(data)
    return kind(**{name: data[name] for name in names})  # type: ignore[arg-type]  # checked above


_TYPES: Mapping[str, type] = {
    **dict.fromkeys(("text", "signature", "call_id", "name", "provider"), str),
    **dict.fromkeys(("arguments", "block", "extra"), Mapping),
    **dict.fromkeys(("is_error", "provider_executed"), bool),
}


def _typed(data: Mapping[str, Json]) -> bool:
    return all(isinstance(data[name], kind) for name, kind in _TYPES.items() if name in data)


def dump(parts: Iterable[Part]) -> list[dict[str, Json]]:
    """The stored form of a message's parts."""
    return [to_json(part) for part in parts]


def load(stored: Iterable[Mapping[str, Json]]) -> tuple[Part, ...]:
    """The parts of a stored message."""
    return tuple(from_json(data) for data in stored)


def text_of(parts: Iterable[Part]) -> str:
    """What a person reads in these parts."""
    return "".join(part.text for part in parts if isinstance(part, Text))


def open_calls(parts: Iterable[Part]) -> tuple[ToolCall, ...]:
    """The calls in these parts that we have to answer."""
    return tuple(p for p in parts if isinstance(p, ToolCall) and not p.provider_executed)


def distinct(parts: Iterable[Part]) -> tuple[Part, ...]:
    """The parts without calls whose id an earlier call has."""
    seen: set[str] = set()
    kept: list[Part] = []
    for part in parts:
        if isinstance(part, ToolCall):
            if part.call_id in seen:
                continue
            seen.add(part.call_id)
        kept.append(part)
    return tuple(kept)


def user_content(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Check what a user may say: at least one part, no calls, results or reasoning."""
    if not parts:
        raise Rejected("The message is empty", "give at least one part, e.g. a text")
    for part in parts:
        kind = str(part.data.get("type")) if isinstance(part, Raw) else part.type
        if kind in _FIELDS and not isinstance(part, Text):  # as Raw: ours, but malformed
            raise Rejected(
                f"A user's message cannot hold a part like this of type {kind!r}",
                "send text, or a content block such as an image",
            )
        if isinstance(part, Text) and not part.text.strip():
            raise Rejected(
                "The message holds an empty text", "say something, or leave the part out"
            )
    return tuple(parts)
