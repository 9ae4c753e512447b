"""A `ModelRequest` as the body that the Messages API takes.

The prompt comes valid from `rejoinder/core/prompt.py`; here it gets what this API wants beyond
that: roles in turns, results before words, no dangling call of a server's tool, no thinking at the
end of a message. The same request always gives the same body, so that prompts can be cached.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from rejoinder.core.messages import Role
from rejoinder.core.model import ModelRequest, Options, Profile, PromptMessage, ToolSpec
from rejoinder.core.parts import Json
from rejoinder.providers.anthropic_blocks import THINKING, Block, block_of, wire_name

DEFAULT_MAX_TOKENS = 32_000
LEAST_BUDGET = 1024
EPHEMERAL: Mapping[str, Json] = {"type": "ephemeral"}
Turn: TypeAlias = tuple[str, list[Block]]

_BEARS_MARK = frozenset(
    {"text", "image", "document", "search_result", "tool_use", "tool_result"}
    | {"server_tool_use", "web_search_tool_result", "web_fetch_tool_result"}
)
_OURS = frozenset({"model", "messages", "system", "stream", "tools", "betas"})


def body_of(request: ModelRequest, profile: Profile) -> dict[str, Json]:
    """The body, without `stream`."""
    options = request.options
    turns = conversation(request.messages)
    body: dict[str, Json] = {
        "model": request.model,
        "max_tokens": options.max_tokens or min(DEFAULT_MAX_TOKENS, profile.max_output_tokens),
        "messages": [{"role": role, "content": blocks} for role, blocks in turns],
    }
    if system := [*_system(request.messages)]:
        body["system"] = system
    body |= _tools(request, turns)
    body |= _ways(options, int(str(body["max_tokens"])), turns)
    for name, value in options.extra.items():
        if name in _OURS:
            continue
        mine = body.get(name)
        both = isinstance(mine, Mapping) and isinstance(value, Mapping)
        body[name] = {**mine, **value} if both else value  # type: ignore[dict-item]  # checked
    if not request.tool_use:
        body.pop("tool_choice", None)
        body |= {"tool_choice": {"type": "none"}} if body.get("tools") else {}
    return body if _is_readable(body) else {n: readable(value) for n, value in body.items()}


def conversation(messages: Iterable[PromptMessage]) -> list[Turn]:
    """The messages after the system's, in turns."""
    said: list[Turn] = []
    for message in messages:
        if message.role is Role.SYSTEM:
            continue
        role = "assistant" if message.role is Role.ASSISTANT else "user"
        said.append((role, _marked(message)))
    turns = _without_dangling(_merged(said))
    return _merged(
        (role, _ended(blocks) if role == "assistant" else blocks) for role, blocks in turns
    )


def _is_readable(body: Mapping[str, Json]) -> bool:
    """Whether it can be sent as it is: nearly always, and quicker to see than to do."""
    try:
        json.dumps(body, ensure_ascii=False).encode()
    except (TypeError, UnicodeEncodeError):  # a mapping that is no dict, or half a surrogate pair
        return False
    return True


def readable(value: Json) -> Json:
    """The same with every text in valid Unicode: a lone surrogate cannot be sent."""
    if isinstance(value, str):
        return value if _encodes(value) else value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {str(readable(name)): readable(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [readable(each) for each in value]
    return value


def _encodes(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _marked(message: PromptMessage) -> list[Block]:
    blocks = [block for part in message.parts if (block := block_of(part)) is not None]
    bearers = [n for n, block in enumerate(blocks) if block.get("type") in _BEARS_MARK]
    if message.cached and bearers:
        blocks[bearers[-1]] = {**blocks[bearers[-1]], "cache_control": EPHEMERAL}
    return blocks


def _system(messages: Iterable[PromptMessage]) -> Iterator[Block]:
    for message in messages:
        if message.role is Role.SYSTEM:
            yield from _marked(message)


def _merged(said: Iterable[Turn]) -> list[Turn]:
    """One message per turn, without empty ones. Results stand first: they follow their calls."""
    turns: list[Turn] = []
    for role, blocks in said:
        if not blocks:
            continue
        if turns and turns[-1][0] == role:
            turns[-1][1].extend(blocks)
        else:
            turns.append((role, [*blocks]))
    return turns


def _ended(blocks: list[Block]) -> list[Block]:
    """Without thinking at the end: the API refuses it, and nothing followed from it."""
    last = len(blocks)
    while last and blocks[last - 1].get("type") in THINKING:
        last -= 1
    return blocks[:last]


def _without_dangling(turns: list[Turn]) -> list[Turn]:
    """Without results that have no call, and calls of a server's tool that nobody will answer.

    A call without a result is only legal while the server still owes it: since then nothing but
    answers, and results of our own tools.
    """
    owed_from = len(turns)
    while owed_from and _goes_on(turns[owed_from - 1]):
        owed_from -= 1
    asked: set[Json] = set()
    answered: set[Json] = set()
    paired = [(role, [b for b in blocks if _pairs(b, asked, answered)]) for role, blocks in turns]
    return [
        (role, [b for b in blocks if place >= owed_from or not _dangles(b, answered)])
        for place, (role, blocks) in enumerate(paired)
    ]


def _pairs(block: Block, asked: set[Json], answered: set[Json]) -> bool:
    """Take note of calls and results; False for a result that belongs to no open call."""
    if _is_server_call(block):
        asked.add(block.get("id"))
    elif _is_answer(block):
        call_id = block.get("tool_use_id")
        if call_id not in asked or call_id in answered:
            return False
        answered.add(call_id)
    return True


def _dangles(block: Block, answered: set[Json]) -> bool:
    return _is_server_call(block) and block.get("id") not in answered


def _goes_on(turn: Turn) -> bool:
    role, blocks = turn
    return role == "assistant" or all(block.get("type") == "tool_result" for block in blocks)


def _is_server_call(block: Block) -> bool:
    return str(block.get("type")).endswith("_tool_use")


def _is_answer(block: Block) -> bool:
    return str(block.get("type")).endswith("_tool_result")


def _tools(request: ModelRequest, turns: Iterable[Turn]) -> dict[str, Json]:
    """The tools in an order that never changes, then the provider's own from `extra`."""
    own = {wire_name(spec.name): spec for spec in request.tools}
    tools: list[Json] = [_tool(name, own[name]) for name in sorted(own)]
    extra = request.options.extra.get("tools")
    if isinstance(extra, list | tuple):
        tools += extra
    if tools:
        return {"tools": tools}
    used = {str(b["name"]) for _, blocks in turns for b in blocks if b.get("type") == "tool_use"}
    if not used:
        return {}
    # A history of calls needs tools to refer to, though none may be used now.
    gone = [_tool(name, ToolSpec(name, "Not available now.", {})) for name in sorted(used)]
    return {"tools": gone, "tool_choice": {"type": "none"}}


def _tool(name: str, spec: ToolSpec) -> Block:
    schema = _filled(spec.schema)
    schema = {"type": "object", "properties": {}, **schema} if isinstance(schema, dict) else {}
    return {"name": name, "description": spec.description, "input_schema": schema}


def _filled(schema: Json) -> Json:
    """A schema in which nothing is null that must be an object or a list."""
    if isinstance(schema, Mapping):
        empty: dict[str, Json] = {"properties": {}, "required": []}
        return {
            name: empty[name] if value is None and name in empty else _filled(value)
            for name, value in schema.items()
        }
    return [_filled(each) for each in schema] if isinstance(schema, list | tuple) else schema


def _ways(options: Options, max_tokens: int, turns: Sequence[Turn]) -> dict[str, Json]:
    """Temperature, thinking and effort, as far as they go together."""
    ways: dict[str, Json] = {}
    thinking = _thinking(options.thinking, max_tokens)
    if thinking and thinking.get("type") == "enabled" and not _may_think(turns):
        thinking = None
    if thinking:
        ways["thinking"] = thinking
    if options.effort:
        ways["output_config"] = {"effort": options.effort}
    thinks = thinking is not None and thinking.get("type") != "disabled"
    if options.temperature is not None and not thinks:  # a model that thinks takes no temperature
        ways["temperature"] = options.temperature
    return ways


def _thinking(wish: Json, max_tokens: int) -> dict[str, Json] | None:
    match wish:
        case None:
            return None
        case bool():
            return {"type": "adaptive" if wish else "disabled"}
        case int() | float():
            budget = min(int(wish), max_tokens - 1)
            return {"type": "enabled", "budget_tokens": budget} if budget >= LEAST_BUDGET else None
        case str():
            return {"type": wish}
        case Mapping():
            return dict(wish)
        case _:
            return None


def _may_think(turns: Sequence[Turn]) -> bool:
    """Whether the answer that is being continued began with thinking, or none is.

    With a budget the API refuses to go on from results whose turn began without thinking, as it
    does after a change of model.
    """
    first: list[Block] | None = None
    for role, blocks in reversed(turns):
        if role == "assistant":
            first = blocks
        elif any(block.get("type") != "tool_result" for block in blocks):
            break
    return first is None or first[0].get("type") in THINKING
