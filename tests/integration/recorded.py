"""Recorded traffic of the real API, where it is at hand, and a server that replays it."""

from __future__ import annotations

import importlib
import json
import sys
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rejoinder.core.messages import Role
from rejoinder.core.model import ModelRequest, Options, PromptMessage
from rejoinder.core.parts import Json, Part, Raw, Text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

STREAMS = Path(__file__).parents[2].parent / "shared" / "streams"
needs_recordings = pytest.mark.skipif(
    not (STREAMS / "replay.py").exists(), reason="the recorded streams are not at hand"
)
# The replay server leaves closing its files to the garbage collector.
open_files = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")


def replay() -> ModuleType:
    if str(STREAMS) not in sys.path:
        sys.path.insert(0, str(STREAMS))
    return importlib.import_module("replay")


@contextmanager
def replaying() -> Iterator[Any]:
    """A server of the recordings, which also closes what it opened."""
    server = replay().ReplayServer(str(STREAMS))
    with server:
        yield server
        server._loop.call_soon_threadsafe(server._srv.close)
    server._thread.join()
    server._loop.close()


@cache
def recordings() -> list[dict[str, Any]]:
    """What there is, by id."""
    index = STREAMS / "index.jsonl"
    lines = index.read_text().splitlines() if index.exists() else []
    return sorted(map(json.loads, lines), key=lambda line: str(line["id"]))


def ids(*kinds: str) -> list[str]:
    return [str(r["id"]) for r in recordings() if r["kind"] in kinds]


@cache
def goldens() -> dict[str, dict[str, Any]]:
    file = STREAMS / "goldens.json"
    return {g["id"]: g for g in json.loads(file.read_text())} if file.exists() else {}


@cache
def recording(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((STREAMS / "recordings" / f"{name}.json").read_text())
    return found


def asking(model: str = "claude-sonnet-5", **options: Json) -> ModelRequest:
    """Any request: what is recorded is the answer."""
    hello = PromptMessage(Role.USER, (Text("Hello"),))
    return ModelRequest(model, (hello,), options=Options(**options))  # type: ignore[arg-type]


def user_parts(content: Any) -> tuple[Part, ...]:
    """A user's recorded content."""
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return tuple(Text(block["text"]) if block["type"] == "text" else Raw(block) for block in blocks)
