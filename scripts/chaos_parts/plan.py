"""What one message asks for: which tools in which steps, and the answer that must come of it.

The plan travels in the message's text. The model server has no memory: it reads the plan out of the
conversation it is sent. So the driver knows the only right answer, and the audit can demand it.
"""

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

TOOLS = ("ledger_once", "ledger_again", "quick")
MOST_SECONDS = 1.5
_PLAN = re.compile(r"PLAN (\{.*\}) END")


@dataclass(frozen=True)
class Call:
    """One tool call: which tool, and for how long it works."""

    tool: str
    seconds: float


@dataclass(frozen=True)
class Plan:
    """The tool calls of each step but the last, which is the answer. `id` is unique in a run."""

    id: str
    steps: tuple[tuple[Call, ...], ...]

    @property
    def text(self) -> str:
        """The message that asks for it."""
        steps = [[asdict(call) for call in step] for step in self.steps]
        return f"Please follow this. PLAN {json.dumps({'id': self.id, 'steps': steps})} END"

    @property
    def answer(self) -> str:
        """The one right answer, in words that take a while to stream."""
        return " ".join(["answer to", self.id, *(["word"] * (6 + len(self.steps) * 2)), "end."])

    def nonce(self, step: int, place: int) -> str:
        """The name of one call: the same however often the model is asked for it."""
        return f"{self.id}/{step}/{place}"


def draw(plan_id: str, dice: random.Random) -> Plan:
    """A plan of one to four model calls, some with several tools at once."""
    steps = []
    for _ in range(dice.choice((0, 1, 1, 2, 2, 3))):
        calls = tuple(
            Call(tool, 0.0 if tool == "quick" else round(dice.uniform(0, MOST_SECONDS), 2))
            for tool in dice.choices(TOOLS, weights=(3, 3, 1), k=dice.choice((1, 1, 2, 3)))
        )
        steps.append(calls)
    return Plan(plan_id, tuple(steps))


def found_in(text: str) -> Plan | None:
    """The plan in a message's text."""
    match = _PLAN.search(text)
    if match is None:
        return None
    data: Mapping[str, Any] = json.loads(match[1])
    steps = tuple(
        tuple(Call(str(call["tool"]), float(call["seconds"])) for call in step)
        for step in data["steps"]
    )
    return Plan(str(data["id"]), steps)


def due(messages: Sequence[Mapping[str, Any]]) -> tuple[Plan, int] | None:
    """The plan that a conversation (as the Messages API has it) is at, and how many steps are done.

    A step is done when its results are there, whatever they say.
    """
    plan, at = None, 0
    for place, message in enumerate(messages):
        if message["role"] != "user":
            continue
        for block in message["content"]:
            if block.get("type") == "text" and (read := found_in(block["text"])):
                plan, at = read, place
    if plan is None:
        return None
    done = sum(
        any(block.get("type") == "tool_result" for block in message["content"])
        for message in messages[at + 1 :]
    )
    return plan, done
