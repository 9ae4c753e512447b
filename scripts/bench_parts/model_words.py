"""What the model of the benchmark says, as the Messages API would: whole, or as events."""

import json
from collections.abc import Mapping
from typing import Any

from scripts.bench_parts.task import MODEL, TOOL, Task

_EMPTY = {"type": "text", "text": ""}


def answer(task: Task, done: int) -> dict[str, Any]:
    """The whole answer to the call after so many."""
    last = done + 1 >= task.calls
    content: list[dict[str, Any]] = [{"type": "text", "text": "word " * task.tokens}]
    if not last:
        call_id = f"toolu_{task.id}_{done}"
        call = {"type": "tool_use", "id": call_id, "name": TOOL, "input": {"a": done, "b": 1}}
        content.append(call)
    return {
        "id": f"msg_{task.id}_{done}",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": content,
        "stop_reason": "end_turn" if last else "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 100, "output_tokens": task.tokens},
    }


def events(message: Mapping[str, Any]) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """The same as events: before the words, the words, each by itself, and after them."""
    first, words, rest = [], [], []
    first.append(_event("message_start", message={**message, "content": [], "stop_reason": None}))
    for index, block in enumerate(message["content"]):
        if block["type"] == "text":
            first.append(_event("content_block_start", index=index, content_block=_EMPTY))
            delta = {"type": "text_delta", "text": "word "}
            word = _event("content_block_delta", index=index, delta=delta)
            words += [word] * len(block["text"].split())
        else:
            begun = {**block, "input": {}}
            rest.append(_event("content_block_start", index=index, content_block=begun))
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            rest.append(_event("content_block_delta", index=index, delta=delta))
        rest.append(_event("content_block_stop", index=index))
    ended = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    rest.append(_event("message_delta", delta=ended, usage=message["usage"]))
    rest.append(_event("message_stop"))
    return first, words, rest


def _event(kind: str, **data: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode()
