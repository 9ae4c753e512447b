"""What one message asks for: which tools in which steps, and the answer that must come of it.

The plan travels in the message's text. The model server has no memory: it reads the plan out of the
conversation it is sent (`conversation.py`). So the driver knows the only right answer, and the
audit can demand it. `drawing.py` makes plans up.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SPAWN, WAIT = "spawn_agent", "wait_agent"
_PLAN = re.compile(r"PLAN (\{.*\}) END")


@dataclass(frozen=True)
class Call:
    """One tool call: which tool, for how long it works, and what else it is told."""

    tool: str
    seconds: float = 0.0
    """For a wait: how long at most."""
    wish: str = ""
    """What somebody outside is to do about it."""
    child: "Plan | None" = None
    """What a chat below is to do."""

    def dump(self) -> dict[str, Any]:
        """As it travels."""
        data: dict[str, Any] = {"tool": self.tool, "seconds": self.seconds}
        data |= {"wish": self.wish} if self.wish else {}
        return data | ({"child": self.child.dump()} if self.child else {})

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> "Call":
        """As it was."""
        child = Plan.load(data["child"]) if "child" in data else None
        return cls(str(data["tool"]), float(data["seconds"]), str(data.get("wish", "")), child)


@dataclass(frozen=True)
class Plan:
    """The tool calls of each step but the last, which is the answer. `id` is unique in a run."""

    id: str
    steps: tuple[tuple[Call, ...], ...]
    full: int | None = None
    """The step after which the model says that its context is nearly full."""

    @property
    def text(self) -> str:
        """The message that asks for it."""
        return f"Please follow this. PLAN {json.dumps(self.dump())} END"

    @property
    def answer(self) -> str:
        """The one right answer, in words that take a while to stream."""
        return " ".join(["answer to", self.id, *(["word"] * (6 + len(self.steps) * 2)), "end."])

    @property
    def children(self) -> Iterator["Plan"]:
        """The plans of the chats below."""
        return (call.child for step in self.steps for call in step if call.child)

    def nonce(self, step: int, place: int) -> str:
        """The name of one call: the same however often the model is asked for it."""
        return f"{self.id}/{step}/{place}"

    def arguments(self, step: int, place: int, agents: Sequence[str] = ()) -> dict[str, Any]:
        """What a tool is told; `agents` are the chats below, as far as they are known."""
        call = self.steps[step][place]
        if call.child:
            return {"prompt": call.child.text, "title": call.child.id}
        if call.tool == WAIT:
            return {"ids": list(agents), "timeout_seconds": call.seconds}
        told: dict[str, Any] = {"nonce": self.nonce(step, place), "seconds": call.seconds}
        return told | ({"wish": call.wish} if call.wish else {})

    def dump(self) -> dict[str, Any]:
        """As it travels."""
        steps = [[call.dump() for call in step] for step in self.steps]
        full = {} if self.full is None else {"full": self.full}
        return {"id": self.id, "steps": steps, **full}

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> "Plan":
        """As it was."""
        steps = tuple(tuple(Call.load(call) for call in step) for step in data["steps"])
        return cls(str(data["id"]), steps, data.get("full"))


def found_in(text: str) -> Plan | None:
    """The plan in a message's text; the last one, if there are several."""
    found = _PLAN.findall(text)
    return Plan.load(json.loads(found[-1])) if found else None
