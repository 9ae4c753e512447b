"""A `ModelRequest` as the body that the Messages API takes.

The prompt comes valid from `rejoinder/core/prompt.py` and is put into turns by
`anthropic_turns.py`; here is all that stands beside them: system, tools, and how to answer. The
same request always gives the same body, so that prompts can be cached.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rejoinder.core.messages import Role
from rejoinder.core.model import ModelRequest, Options, Profile, PromptMessage, ToolSpec
from rejoinder.core.parts import Json
from rejoinder.providers.anthropic_blocks import THINKING, Block, wire_name
from rejoinder.providers.anthropic_turns import Said, conversation, marked, turns_sent, value_sent

DEFAULT_MAX_TOKENS = 32_000
LEAST_BUDGET = 1024

_SYSTEM = Role.SYSTEM
_OURS = frozenset({"model", "messages", "system", "stream", "tools", "betas"})


def body_of(request: ModelRequest, profile: Profile) -> bytes:
    """The body, as JSON."""
    said = conversation(request.messages)
    beside = value_sent(_beside(request, profile, said))
    return b'%b,"messages":%b}' % (beside[:-1], turns_sent(said))


def _beside(request: ModelRequest, profile: Profile, said: Sequence[Said]) -> dict[str, Json]:
    """The body without its messages."""
    options = request.options
    most = options.max_tokens or min(DEFAULT_MAX_TOKENS, profile.max_output_tokens)
    body: dict[str, Json] = {"model": request.model, "max_tokens": most, "stream": True}
    if system := [*_system(request.messages)]:
        body["system"] = system
    body |= _tools(request, said)
    body |= _ways(options, most, said)
    for name, value in options.extra.items():
        if name in _OURS:
            continue
        mine = body.get(name)
        both = isinstance(mine, Mapping) and isinstance(value, Mapping)
        body[name] = {**mine, **value} if both else value  # type: ignore[dict-item]  # checked
    if not request.tool_use:
        body.pop("tool_choice", None)
        body |= {"tool_choice": {"type": "none"}} if body.get("tools") else {}
    return body


def _system(messages: Iterable[PromptMessage]) -> Iterator[Block]:
    for message in messages:
        if message.role is _SYSTEM:
            yield from marked(message)


def _tools(request: ModelRequest, said: Iterable[Said]) -> dict[str, Json]:
    """The tools in an order that never changes, then the provider's own from `extra`."""
    own = {wire_name(spec.name): spec for spec in request.tools}
    tools: list[Json] = [_tool(name, own[name]) for name in sorted(own)]
    extra = request.options.extra.get("tools")
    if isinstance(extra, list | tuple):
        tools += extra
    if tools:
        return {"tools": tools}
    used = {str(b["name"]) for m in said for b in m.blocks if b.get("type") == "tool_use"}
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


def _ways(options: Options, max_tokens: int, said: Sequence[Said]) -> dict[str, Json]:
    """Temperature, thinking and effort, as far as they go together."""
    ways: dict[str, Json] = {}
    thinking = _thinking(options.thinking, max_tokens)
    if thinking and thinking.get("type") == "enabled" and not _may_think(said):
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


def _may_think(said: Sequence[Said]) -> bool:
    """Whether the answer that is being continued began with thinking, or none is.

    With a budget the API refuses to go on from results whose turn began without thinking, as it
    does after a change of model.
    """
    first: Said | None = None
    for message in reversed(said):
        if message.role == "assistant":
            first = message
        elif any(block.get("type") != "tool_result" for block in message.blocks):
            break
    return first is None or first.blocks[0].get("type") in THINKING
