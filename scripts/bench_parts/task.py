"""One turn as all contenders get it: so many model calls, each but the last with one trivial tool.

The order travels in the user's message; the model server reads it from there, and needs no memory.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

TOOL = "add"
TOOL_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
TOOL_SAYS = "Add two numbers."
MODEL = "claude-haiku-4-5"
WORDS = "so many words were said"
"""What each message before the turn says."""
_TASK = re.compile(r"TASK (\{.*?\}) END")


@dataclass(frozen=True)
class Task:
    """What one turn is to do. `id` is unique in a run."""

    id: str
    calls: int = 10
    """Model calls; the last one is the answer."""
    tokens: int = 20
    pace: float = 0.0
    """Seconds between two tokens."""
    crowd: int = 0
    """The model begins to answer when so many calls are open."""
    before: int = 0
    """Messages of the chat that come before this turn."""

    @property
    def text(self) -> str:
        """The user's message."""
        return f"TASK {json.dumps(asdict(self))} END"

    @property
    def history(self) -> list[tuple[str, str]]:
        """What was said before the turn: who, and what."""
        return [("assistant" if n % 2 else "user", WORDS) for n in range(self.before)]


def due(messages: Sequence[Mapping[str, Any]]) -> tuple[Task, int] | None:
    """The newest task in a conversation, and how many of its model calls are done."""
    done = 0
    for message in reversed(messages):
        if message["role"] == "assistant":
            done += 1
            continue
        if (found := _TASK.search(_text(message["content"]))) is not None:
            return Task(**json.loads(found[1])), done
    return None


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return " ".join(str(block.get("text", "")) for block in content if block.get("type") == "text")
