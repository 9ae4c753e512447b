"""Placeholders in a script's texts, filled from the conversation.

`{user}` is what the user said last; `{result}` the first of the newest tool results, `{results}`
all of them, a line each; `{result:0}` and `{result:weather}` one of them, by place or by tool, and
`{result:weather.celsius}` a field of its JSON. Other braces stay as they are.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rejoinder.core.messages import Role
from rejoinder.core.model import PromptMessage
from rejoinder.core.parts import Json, ToolCall, ToolResult, text_of

_PLACE = re.compile(r"\{(?:(user)|(results)|result(?::([\w-]+)((?:\.[\w-]+)*))?)\}")
_ABSENT = "(no result)"


def fill(template: Any, messages: Sequence[PromptMessage]) -> Any:  # any JSON
    """The template with its places filled; in lists and mappings, every text in them."""
    if isinstance(template, str):
        results = _results(messages)
        return _PLACE.sub(lambda match: _value(match, messages, results), template)
    if isinstance(template, Mapping):
        return {key: fill(value, messages) for key, value in template.items()}
    if isinstance(template, list | tuple):
        return [fill(item, messages) for item in template]
    return template


def _value(
    match: re.Match[str], messages: Sequence[PromptMessage], results: list[tuple[str, str]]
) -> str:
    user, every, key, path = match.groups()
    if user:
        said = [text_of(message.parts) for message in messages if message.role is Role.USER]
        return said[-1] if said else ""
    if every:
        return "\n".join(text for _, text in results) or _ABSENT
    wanted = key or "0"
    for place, (name, text) in enumerate(results):
        if wanted in (str(place), name):
            return _field(text, path.split(".")[1:]) if path else text
    return _ABSENT


def _results(messages: Sequence[PromptMessage]) -> list[tuple[str, str]]:
    """The tool results since the last answer: the tool's name, and the text of its content."""
    start = 0
    for index, message in enumerate(messages):
        if message.role is Role.ASSISTANT:
            start = index
    recent = [part for message in messages[start:] for part in message.parts]
    names = {part.call_id: part.name for part in recent if isinstance(part, ToolCall)}
    return [
        (names.get(part.call_id, ""), _text(part.content))
        for part in recent
        if isinstance(part, ToolResult)
    ]


def _text(content: Json) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(block, Mapping) for block in content):
        texts = [str(block["text"]) for block in content if "text" in block]
        return "\n".join(texts)
    return json.dumps(content, ensure_ascii=False)


def _field(text: str, path: Sequence[str]) -> str:
    try:
        value = json.loads(text)
        for key in path:
            value = value[int(key)] if isinstance(value, list) else value[key]
    except (ValueError, KeyError, IndexError, TypeError):
        return _ABSENT
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
