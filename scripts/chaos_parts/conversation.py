"""How the model server reads a conversation: which plan it is at, and how far that has come.

The last plan counts: a message that joined a turn changes what the turn is about. A step is done
when its results are there, whatever they say. A summary says how far the plan had come before it,
so that it goes on behind it.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scripts.chaos_parts.plan import SPAWN, Plan, found_in

ASKS_FOR_SUMMARY = "write a summary of this conversation"
_PROGRESS = re.compile(r"PROGRESS (\{.*\}) END")
_CHAT = re.compile(r"chat_id\W+([0-9a-f-]{36})")

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Due:
    """What the model has to do next."""

    plan: Plan
    step: int
    agents: tuple[str, ...] = ()
    """The chats below that the plan has had made."""
    fresh: bool = False
    """Whether nothing was said since a summary."""

    @property
    def summary(self) -> str:
        """What to tell whoever goes on from here."""
        data = {"plan": self.plan.dump(), "step": self.step, "agents": self.agents}
        words = " ".join(["word"] * 10)
        return f"So far {words}. PROGRESS {json.dumps(data, separators=(',', ':'))} END"


def due(messages: Sequence[Message]) -> Due | None:
    """The plan that a conversation (as the Messages API has it) is at, and how far it has come."""
    at, known = 0, None
    for place, text in _texts(messages):
        if (summed_up := _progress(text)) is not None:
            at, known = place, summed_up
        if (plan := found_in(text)) and (known is None or plan.id != known.plan.id):
            at, known = place, Due(plan, 0)
    if known is None:
        return None
    since = messages[at + 1 :]
    steps = known.step + sum(any(True for _ in _results(message)) for message in since)
    agents = (*known.agents, *_spawned(messages[at:]))
    spoken = any(message["role"] == "assistant" for message in since)
    return Due(known.plan, steps, agents, known.fresh and not spoken)


def asks_for_summary(messages: Sequence[Message]) -> bool:
    """Whether the last thing that is asked for is a summary."""
    last = len(messages) - 1
    return any(ASKS_FOR_SUMMARY in text for place, text in _texts(messages) if place == last)


def _progress(text: str) -> Due | None:
    found = _PROGRESS.findall(text)
    if not found:
        return None
    data = json.loads(found[-1])
    return Due(Plan.load(data["plan"]), data["step"], tuple(data["agents"]), fresh=True)


def _texts(messages: Sequence[Message]) -> Iterator[tuple[int, str]]:
    """What users say, with the place of the message."""
    for place, message in enumerate(messages):
        if message["role"] == "user":
            for block in message["content"]:
                if block.get("type") == "text":
                    yield place, block["text"]


def _results(message: Message) -> Iterator[Mapping[str, Any]]:
    return (block for block in message["content"] if block.get("type") == "tool_result")


def _spawned(messages: Sequence[Message]) -> Iterator[str]:
    """The ids of the chats that were made."""
    asked = {
        block["id"]
        for message in messages
        for block in message["content"]
        if block.get("type") == "tool_use" and block["name"] == SPAWN
    }
    for message in messages:
        for result in _results(message):
            if result["tool_use_id"] in asked and not result.get("is_error"):
                yield from _CHAT.findall(json.dumps(result["content"]).replace("\\", ""))
