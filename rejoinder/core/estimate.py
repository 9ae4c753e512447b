"""How many tokens a text or a history takes, about: to see an overflow before the provider does.

What the provider counted is better than any guess, so only what came after its last count is
estimated. Nobody is billed by these figures, and a prompt near the limit may be judged wrongly
either way; `tasks/compact.py` copes with a guess that was too low.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, assert_never

from rejoinder.core.model import ToolSpec
from rejoinder.core.parts import (
    Json,
    Part,
    ProviderBlock,
    Raw,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
)

BYTES_PER_TOKEN = 3.5
MEDIA_TOKENS = 1_600
"""An image or a document, whatever its size: a model is shown it scaled down."""
MESSAGE_TOKENS = 4
"""What a message takes beside its words."""


class Counted(Protocol):
    """A message, and how much the model had read when it wrote it, if the provider said so."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """What is said."""

    @property
    def context_tokens(self) -> int | None:
        """Everything that went into the call that produced it."""


def prompt_tokens(history: Sequence[Counted], overhead: int = 0) -> int:
    """Estimate a prompt of this history; `overhead` is what stands beside it, such as tools."""
    for place in range(len(history) - 1, -1, -1):
        known = history[place].context_tokens
        if known is not None:  # the overhead is in it
            return known + sum(message_tokens(m.parts) for m in history[place:])
    return overhead + sum(message_tokens(m.parts) for m in history)


def message_tokens(parts: Iterable[Part]) -> int:
    """Estimate one message."""
    return MESSAGE_TOKENS + sum(map(part_tokens, parts))


def part_tokens(part: Part) -> int:
    """Estimate one part."""
    match part:
        case Text(text) | Reasoning(text):
            return text_tokens(text)
        case ToolCall(name=name, arguments=arguments):
            return text_tokens(name) + json_tokens(arguments)
        case ToolResult(content=content):
            return json_tokens(content)
        case ProviderBlock(block=block):
            return json_tokens(block)
        case Raw(data):
            return json_tokens(data)
        case _:
            assert_never(part)


def tools_tokens(tools: Iterable[ToolSpec]) -> int:
    """Estimate what the description of tools takes."""
    return sum(
        text_tokens(tool.name) + text_tokens(tool.description) + json_tokens(tool.schema)
        for tool in tools
    )


def json_tokens(value: Json) -> int:
    """Estimate a JSON value: media in it are a flat figure, the rest counts as it is written."""
    if isinstance(value, str):
        return text_tokens(value)
    if is_media(value):
        return MEDIA_TOKENS
    if isinstance(value, Mapping):
        return sum(text_tokens(name) + json_tokens(each) for name, each in value.items())
    if isinstance(value, list | tuple):
        return sum(map(json_tokens, value))
    return text_tokens(json.dumps(value))


def is_media(value: Json) -> bool:
    """Whether this block is shown, not read."""
    if not isinstance(value, Mapping):
        return False
    source = value.get("source")
    inside = source.get("type") if isinstance(source, Mapping) else None
    return value.get("type") == "image" or inside in ("base64", "url", "file")


def is_shown(part: Part) -> bool:
    """Whether this part of a user's message is an image or the like."""
    return isinstance(part, Raw) and is_media(part.data)


def text_tokens(text: str) -> int:
    """Estimate a text."""
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return math.ceil(size / BYTES_PER_TOKEN)
