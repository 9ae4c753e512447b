"""What a dead worker had written of an answer, put together from the live parts it had sent.

A stop keeps these words, as it keeps those of a worker that lives. Read from the newest event
backwards, to the first part of that attempt; anything that shows that the parts were stored, or
were of another attempt, ends the search.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

import redis

from rejoinder.core.effects import EventKind
from rejoinder.core.messages import NewMessage, Role
from rejoinder.core.model import CallDelta, PartDone, StreamItem, TextDelta
from rejoinder.core.partial import Partial
from rejoinder.core.parts import Text, ToolCall
from rejoinder.core.state import Status
from rejoinder.streams import StreamEvent, backwards, key_of

log = logging.getLogger(__name__)


def what_was_written(
    client: "redis.Redis", prefix: str, chat_id: UUID, history_version: int
) -> NewMessage | None:
    """The partial answer on top of this history, or None."""
    try:
        sent = _newest_attempt(client, key_of(prefix, chat_id), history_version)
    except redis.RedisError as error:
        log.warning("The live parts of chat %s are lost: %s", chat_id, error)
        return None
    partial = Partial()
    for item in _items(sent):
        partial.add(item)
    kept = partial.parts()
    return NewMessage(Role.ASSISTANT, kept) if kept else None


def _newest_attempt(
    client: "redis.Redis", name: str, history_version: int
) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    for event in backwards(client, name):
        part = event.data
        if event.kind == "part":
            if part["history_version"] != history_version:
                break
            if found and part["attempt"] != found[-1]["attempt"]:
                break
            found.append(part)
            if part["seq"] == part["n"]:  # the first one
                break
        elif _is_boundary(event):
            break
    return _whole(found[::-1])


def _whole(parts: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """What came without a hole, from the first on."""
    said, whole = 0, []
    for part in parts:
        if part["seq"] - part["n"] != said:
            break
        said = part["seq"]
        whole.append(part)
    return whole


def _is_boundary(event: StreamEvent) -> bool:
    if event.kind == EventKind.STATUS:
        return bool(event.data["status"] != Status.INTERRUPTING)
    return event.kind in (EventKind.MESSAGE, EventKind.HISTORY_RESET, "preview_reset")


def _items(sent: list[Mapping[str, Any]]) -> Iterator[StreamItem]:
    """The parts as they came from the model. Thinking is left out: its signature is not there."""
    whole: dict[int, tuple[Mapping[str, Any], list[str]]] = {}
    for part in sent:
        index, of = part["index"], part["of"]
        if of == "end":
            if index in whole and (done := _done(*whole[index])) is not None:
                yield PartDone(index, done)
            continue
        first, words = whole.setdefault(index, (part, []))
        words.append(part["text"])
        if of == "text":
            yield TextDelta(index, part["text"])
        elif of == "tool_call":
            yield CallDelta(index, first["call_id"], first["name"], part["text"])


def _done(first: Mapping[str, Any], words: list[str]) -> Text | ToolCall | None:
    text = "".join(words)
    if first["of"] == "text":
        return Text(text) if text.strip() else None
    if first["of"] != "tool_call":
        return None
    try:
        arguments = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return None
    if not isinstance(arguments, dict):
        return None
    return ToolCall(first["call_id"], first["name"], arguments)
