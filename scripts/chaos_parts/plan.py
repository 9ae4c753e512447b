"""What one message asks for: which tools in which steps, and the answer that must come of it.

The plan travels in the message's text. The model server has no memory: it reads the plan out of the
conversation it is sent. So the driver knows the only right answer, and the audit can demand it.
`drawing.py` makes plans up.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_PLAN = re.compile(r"PLAN (\{.*\}) END")


@dataclass(frozen=True)
class Call:
    """One tool call: which tool, for how long it works, and what else it is told."""

    tool: str
    seconds: float = 0.0
    wish: str = ""
    """What somebody outside is to do about it."""

    def dump(self) -> dict[str, Any]:
        """As it travels."""
        data: dict[str, Any] = {"tool": self.tool, "seconds": self.seconds}
        return data | ({"wish": self.wish} if self.wish else {})

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> "Call":
        """As it was."""
        return cls(str(data["tool"]), float(data["seconds"]), str(data.get("wish", "")))


@dataclass(frozen=True)
class Plan:
    """The tool calls of each step but the last, which is the answer. `id` is unique in a run."""

    id: str
    steps: tuple[tuple[Call, ...], ...]

    @property
    def text(self) -> str:
        """The message that asks for it."""
        return f"Please follow this. PLAN {json.dumps(self.dump())} END"

    @property
    def answer(self) -> str:
        """The one right answer, in words that take a while to stream."""
        return " ".join(["answer to", self.id, *(["word"] * (6 + len(self.steps) * 2)), "end."])

    def nonce(self, step: int, place: int) -> str:
        """The name of one call: the same however often the model is asked for it."""
        return f"{self.id}/{step}/{place}"

    def arguments(self, step: int, place: int) -> dict[str, Any]:
        """What a tool is told."""
        call = self.steps[step][place]
        told: dict[str, Any] = {"nonce": self.nonce(step, place), "seconds": call.seconds}
        return told | ({"wish": call.wish} if call.wish else {})

    def dump(self) -> dict[str, Any]:
        """As it travels."""
        return {"id": self.id, "steps": [[call.dump() for call in step] for step in self.steps]}

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> "Plan":
        """As it was."""
        steps = tuple(tuple(Call.load(call) for call in step) for step in data["steps"])
        return cls(str(data["id"]), steps)


def found_in(text: str) -> Plan | None:
    """The plan in a message's text; the last one, if there are several."""
    found = _PLAN.findall(text)
    return Plan.load(json.loads(found[-1])) if found else None


def due(messages: Sequence[Mapping[str, Any]]) -> tuple[Plan, int] | None:
    """The plan that a conversation (as the Messages API has it) is at, and how many steps are done.

    The last plan counts: a message that joined a turn changes what the turn is about. A step is
    done when its results are there, whatever they say.
    """
    plan, at = None, 0
    for place, text in _texts(messages):
        if read := found_in(text):
            plan, at = read, place
    if plan is None:
        return None
    done = sum(
        any(block.get("type") == "tool_result" for block in message["content"])
        for message in messages[at + 1 :]
    )
    return plan, done


def _texts(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, str]]:
    """What users say, with the place of the message."""
    for place, message in enumerate(messages):
        if message["role"] == "user":
            for block in message["content"]:
                if block.get("type") == "text":
                    yield place, block["text"]
