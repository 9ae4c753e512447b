"""Making a history fit into a prompt that is to be summarised, by cutting what is largest in it.

The longest texts lose their middle, all to the same length, so that many short messages are never
cut for one long one. If that is not enough, the oldest messages go. Only for the call that writes a
summary: stored history is never changed, and `assemble` mends calls and results that lost each
other.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import assert_never

from rejoinder.core.decide import Entry
from rejoinder.core.estimate import is_media, is_shown, message_tokens, prompt_tokens
from rejoinder.core.messages import Role
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

LEAST = 400
"""Characters that are left of any text."""
NOT_SHOWN = "[not shown here]"


def fit(history: Sequence[Entry], room: int, *, overhead: int = 0) -> tuple[Entry, ...]:
    """The history, cut as far as is needed for about `room` tokens."""
    if prompt_tokens(history, overhead) <= room:
        return tuple(history)
    room -= overhead
    plain = [_plain(entry) for entry in history]
    low, high = LEAST, max((_longest(entry) for entry in plain), default=LEAST)
    while low < high:  # the greatest length at which it fits, or the least of all
        middle = (low + high + 1) // 2
        if _size([_cut(entry, middle) for entry in plain]) <= room:
            low = middle
        else:
            high = middle - 1
    return _newest([_cut(entry, low) for entry in plain], room)


def shorten(text: str, length: int) -> str:
    """The text, or its head and tail with a note between that says how much is missing."""
    if len(text) <= length:
        return text
    head = length * 2 // 3
    tail = length - head
    gone = len(text) - head - tail
    return f"{text[:head]}\n[… {gone} characters are left out here …]\n{text[len(text) - tail :]}"


def _size(entries: Sequence[Entry]) -> int:
    return sum(message_tokens(entry.parts) for entry in entries)


def _newest(entries: list[Entry], room: int) -> tuple[Entry, ...]:
    """Without the oldest, as far as is needed. The system's words and a summary always stay."""
    excess = _size(entries) - room
    kept = []
    for place, entry in enumerate(entries):
        last = place == len(entries) - 1
        if excess <= 0 or last or entry.compressed or entry.role is Role.SYSTEM:
            kept.append(entry)
        else:
            excess -= message_tokens(entry.parts)
    return tuple(kept)


def _plain(entry: Entry) -> Entry:
    """Without thinking and media: a summary does not need them."""
    parts = (_without_media(part) for part in entry.parts if not isinstance(part, Reasoning))
    return replace(entry, parts=tuple(parts), context_tokens=None)


def _without_media(part: Part) -> Part:
    match part:
        case Raw() if is_shown(part):
            return Text(NOT_SHOWN)
        case ToolResult(content=content):
            return replace(part, content=_seen(content))
        case _:
            return part


def _seen(value: Json) -> Json:
    if is_media(value):
        return {"type": "text", "text": NOT_SHOWN}
    return [_seen(each) for each in value] if isinstance(value, list | tuple) else value


def _longest(entry: Entry) -> int:
    longest = 0

    def see(text: str) -> str:
        nonlocal longest
        longest = max(longest, len(text))
        return text

    _each_text(entry, see)
    return longest


def _cut(entry: Entry, length: int) -> Entry:
    if entry.role is Role.SYSTEM:
        return entry
    return _each_text(entry, lambda text: shorten(text, length))


def _each_text(entry: Entry, change: Callable[[str], str]) -> Entry:
    return replace(entry, parts=tuple(_changed(part, change) for part in entry.parts))


def _changed(part: Part, change: Callable[[str], str]) -> Part:
    match part:
        case Text(text):
            return replace(part, text=change(text))
        case ToolCall(arguments=arguments):
            return replace(part, arguments=_mapping(arguments, change))
        case ToolResult(content=content):
            return replace(part, content=_content(content, change))
        case Reasoning() | ProviderBlock() | Raw():
            return part  # what we cannot read stays as it is, or goes as a whole
        case _:
            assert_never(part)


def _content(content: Json, change: Callable[[str], str]) -> Json:
    """A result: words, content blocks, or any JSON, which is cut as it is written."""
    if isinstance(content, str):
        return change(content)
    if _are_blocks(content):
        return _values(content, change)
    written = json.dumps(content, ensure_ascii=False)
    cut = change(written)
    return content if cut == written else cut


def _are_blocks(content: Json) -> bool:
    return isinstance(content, list | tuple) and all(
        isinstance(block, Mapping) and "type" in block for block in content
    )


def _values(value: Json, change: Callable[[str], str]) -> Json:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return _mapping(value, change)
    return [_values(each, change) for each in value] if isinstance(value, list | tuple) else value


def _mapping(value: Mapping[str, Json], change: Callable[[str], str]) -> Mapping[str, Json]:
    return {name: _values(each, change) for name, each in value.items()}
