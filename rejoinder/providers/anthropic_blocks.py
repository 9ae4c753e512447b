"""Content blocks of the Messages API and our parts, both ways, without a loss.

What a block holds beyond what we know stays in `extra` and goes back; a block we do not know at all
is a `ProviderBlock`. Nothing here looks at more than one block: what a whole conversation must
obey is in `anthropic_request.py`.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import TypeAlias, assert_never

from rejoinder.core.parts import (
    Json,
    Part,
    ProviderBlock,
    Raw,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
)

NAME = "anthropic"
Block: TypeAlias = dict[str, Json]

THINKING = frozenset({"thinking", "redacted_thinking"})
USER_BLOCKS = frozenset({"image", "document", "search_result", "container_upload"})
RESULT_BLOCKS = frozenset(
    {"text", "image", "document", "search_result", "tool_reference", "browser_state"}
)
_LEGAL = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]")


def part_of(block: Mapping[str, Json], names: Mapping[str, str]) -> Part:
    """A block of an answer as a part; `names` leads from a tool's name on the wire to its own."""
    match block:
        case {"type": "text", "text": str(text)}:
            return Text(text, _rest(block, "type", "text"))
        case {"type": "thinking", "thinking": str(text)}:
            signature = block.get("signature")
            signed = signature if isinstance(signature, str) and signature else None
            return Reasoning(text, signed, _rest(block, "type", "thinking", "signature"))
        case {"type": "redacted_thinking", "data": str(data)}:
            return Reasoning("", data, _rest(block, "data"))
        case {"type": "tool_use", "id": str(call_id), "name": str(name), "input": Mapping() as got}:
            extra = _rest(block, "type", "id", "name", "input")
            return ToolCall(call_id, names.get(name, name), got, extra=extra)
        case {"type": str(kind), "id": str(call_id), "name": str(name), "input": Mapping() as got}:
            if kind.endswith("_tool_use"):
                extra = _rest(block, "id", "name", "input")
                return ToolCall(call_id, name, got, provider_executed=True, extra=extra)
    return ProviderBlock(NAME, dict(block))


def block_of(part: Part) -> Block | None:  # noqa: PLR0911  # one per kind of part
    """The block that a part of the prompt is sent as; None: it has no place there."""
    match part:
        case Text():
            return {"type": "text", "text": part.text, **(part.extra or {})}
        case Reasoning(extra={"type": "redacted_thinking"}):
            return {**(part.extra or {}), "data": part.signature}
        case Reasoning():
            words: Block = {"thinking": part.text, "signature": part.signature}
            return {"type": "thinking", **words, **(part.extra or {})} if part.signature else None
        case ToolCall():
            return _call(part)
        case ToolResult():
            return _result(part)
        case ProviderBlock():
            return dict(part.block) if part.provider == NAME else None
        case Raw():
            return _attached(part.data)
        case _:
            assert_never(part)


def wire_name(name: str) -> str:
    """A tool's name as the API takes it: itself, or made legal and still different from others."""
    if _LEGAL.fullmatch(name):
        return name
    return f"{_ILLEGAL.sub('_', name)[:55]}_{_digest(name)}"


def wire_id(call_id: str) -> str:
    """A call's id as the API takes it; ids of other providers may hold anything."""
    if call_id and not _ILLEGAL.search(call_id):
        return call_id
    return f"{_ILLEGAL.sub('_', call_id)}_{_digest(call_id)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def _rest(block: Mapping[str, Json], *known: str) -> dict[str, Json] | None:
    """What else a block holds; null is an absence."""
    return {k: v for k, v in block.items() if k not in known and v is not None} or None


def _call(call: ToolCall) -> Block | None:
    extra = call.extra or {}
    if not call.provider_executed:
        who: Block = {"id": wire_id(call.call_id), "name": wire_name(call.name)}
        return {"type": "tool_use", **who, "input": call.arguments, **extra}
    if extra.get("type") in (None, "tool_use"):
        return None  # made by code on the server, which has had its answer: nobody waits for it
    return {**extra, "id": call.call_id, "name": call.name, "input": call.arguments}


def _result(result: ToolResult) -> Block:
    block: Block = {"type": "tool_result", "tool_use_id": wire_id(result.call_id)}
    content = _content(result.content)
    if result.is_error:
        block["is_error"] = True
        content = _error_text(content)  # the API takes nothing but text, and not nothing
    return {**block, "content": content} if content else block


def _content(content: Json) -> str | list[Block]:
    if isinstance(content, str):
        return content if content.strip() else ""
    if isinstance(content, list | tuple):
        blocks = [dict(b) for b in content if isinstance(b, Mapping)]
        if len(blocks) == len(content) and all(b.get("type") in RESULT_BLOCKS for b in blocks):
            return [_unmarked(b) for b in blocks if not is_blank(b)]
    return json.dumps(content, ensure_ascii=False)


def is_blank(block: Block) -> bool:
    """Whether it is a text without a word."""
    return block.get("type") == "text" and not str(block.get("text") or "").strip()


def _error_text(content: str | list[Block]) -> str | list[Block]:
    if isinstance(content, list):
        content = [block for block in content if block.get("type") == "text"]
    return content or "The tool failed and said nothing."


def _attached(data: Mapping[str, Json]) -> Block:
    """A user's own block. One that the API would refuse is told about, not lost."""
    if data.get("type") in USER_BLOCKS:
        return _unmarked(data)
    kind = data.get("type")
    return {"type": "text", "text": f"(An attachment of type {kind!r} cannot be shown here.)"}


def _unmarked(block: Mapping[str, Json]) -> Block:
    """Without cache marks of its own: the API takes four in all, and we set them."""
    return {name: value for name, value in block.items() if name != "cache_control"}
