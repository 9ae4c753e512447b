"""Scripts for chats that have other chats work for them.

A child has its parent's options, so scripts are files here, and each model is another file.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from rejoinder.client import Client, Turn

Step = Mapping[str, Any]


def acting(folder: Path, *steps: Step, later: Sequence[Sequence[Step]] = ()) -> str:
    """A model that says these things in its first turn, and those in the next ones."""
    path = folder / f"{uuid4().hex}.json"
    path.write_text(json.dumps({"turns": [list(steps), *map(list, later)]}), encoding="utf-8")
    return f"scripted:file:{path}"


def calling(name: str, **arguments: Any) -> Step:
    """A step that calls one tool."""
    return {"calls": [{"name": name, "arguments": arguments}]}


def spawning(*models: str, words: str = "Do your part.") -> Step:
    """A step that spawns a child for each of these models."""
    return {
        "calls": [
            {"name": "spawn_agent", "arguments": {"prompt": words, "title": f"nr {n}", "model": m}}
            for n, m in enumerate(models)
        ]
    }


def waiting(count: int, **arguments: Any) -> Step:
    """A step that waits for the children that were just spawned."""
    ids = [f"{{result:{n}.chat_id}}" for n in range(count)]
    return calling("wait_agent", ids=ids, **arguments)


def again(**arguments: Any) -> Step:
    """A step that waits for the one child that the last result told of."""
    return calling("wait_agent", chat_id="{result:0.chat_id}", **arguments)


SAY = {"text": "{result}"}
"""A step that gives the newest result as its answer."""


def delegate(client: Client, model: str, **more: Any) -> Turn:
    """Create a chat that may have agents."""
    options = {"agents": True, **more.pop("options", {})}
    return client.create_chat("Go.", owner="joe", model=model, options=options, **more)


def outcome(turn: Turn, seconds: float = 60.0) -> dict[str, Any]:
    """The result that the chat gave as its answer."""
    told: dict[str, Any] = json.loads(turn.get(timeout=seconds)["text"])
    return told


def results(client: Client, chat_id: str) -> list[Any]:
    """All tool results of a chat, in order: read, or as they are."""
    found = []
    for message in client.get_messages(chat_id)["messages"]:
        for part in message["parts"] if message["role"] == "tool" else ():
            try:
                found.append(json.loads(part["content"]))
            except ValueError:
                found.append(part["content"])
    return found
