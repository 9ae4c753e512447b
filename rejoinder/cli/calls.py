"""Tool calls as a person reads them: one line each, while they run and when they are done."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LONGEST_ARGUMENTS = 60


@dataclass
class Call:
    """A tool call on its way."""

    name: str
    arguments: str = ""
    """As JSON, perhaps still incomplete."""
    state: str = "asked"
    progress: str = ""
    shown: bool = False

    def __str__(self) -> str:
        """The call as code."""
        return f"{self.name}({short(_arguments(self.arguments), LONGEST_ARGUMENTS)})"


def progress_of(data: object) -> str:
    """What a tool said about its progress: `done` of `of`, a text, or anything."""
    if isinstance(data, Mapping):
        if {"done", "of"} <= set(data):
            return f"{data['done']} of {data['of']}"
        return ", ".join(f"{key}: {one_line(value)}" for key, value in data.items())
    return one_line(data)


def one_line(value: object) -> str:
    """A tool's result, or any JSON, in one line."""
    if isinstance(value, str):
        return " ".join(value.split())
    if isinstance(value, list) and value and all(isinstance(block, Mapping) for block in value):
        return " ".join(_block(block) for block in value)
    return json.dumps(value, ensure_ascii=False)


def short(text: str, longest: int) -> str:
    """The text, cut to a length."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _block(block: Mapping[str, Any]) -> str:
    return one_line(block["text"]) if "text" in block else f"[{block.get('type', 'data')}]"


def _arguments(written: str) -> str:
    try:
        arguments = json.loads(written or "{}")
    except ValueError:
        return "…"  # still being written
    if not isinstance(arguments, dict):
        return one_line(arguments)
    return ", ".join(
        f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items()
    )
