"""A prompt's messages as the turns that the Messages API takes, and as the JSON of them.

Roles in turns, no dangling call of a server's tool, no thinking at the end of a message. What a
message is sent as is kept as long as the message lives; only where blocks of several messages
depend on each other is everything looked at again.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from rejoinder.core.kept import Kept
from rejoinder.core.messages import Role
from rejoinder.core.model import PromptMessage
from rejoinder.core.parts import Json
from rejoinder.providers.anthropic_blocks import THINKING, Block, block_of, is_blank

EPHEMERAL: Mapping[str, Json] = {"type": "ephemeral"}

_BEARS_MARK = frozenset(
    {"text", "image", "document", "search_result", "tool_use", "tool_result"}
    | {"server_tool_use", "web_search_tool_result", "web_fetch_tool_result"}
)


class Said(NamedTuple):
    """A message, in blocks."""

    role: str
    blocks: list[Block]
    sent: bytes
    """The same as JSON, without brackets."""
    depends: bool
    """Whether its blocks must be judged together with those of others."""


_Turn: TypeAlias = tuple[str, list[Block]]

_BEGINS = {role: b'{"role":"%b","content":[' % role.encode() for role in ("user", "assistant")}
_SYSTEM = Role.SYSTEM
_kept: Kept[Said] = Kept()


def conversation(messages: Iterable[PromptMessage]) -> list[Said]:
    """The messages after the system's, without empty ones. Those of one role are one turn."""
    said = _kept.all([m for m in messages if m.role is not _SYSTEM], _said)
    if any([each.depends for each in said]):  # noqa: C419  # a generator takes twice as long
        said = [
            Said(role, blocks, items_sent(blocks), depends=False) for role, blocks in _judged(said)
        ]
    return [each for each in said if each.blocks]


def turns_sent(said: Iterable[Said]) -> bytes:
    """The JSON of a conversation."""
    pieces: list[bytes] = []
    last = ""
    for role, _, sent, _ in said:
        if role != last:
            pieces += (b"]}," if last else b"[", _BEGINS[role], sent)
            last = role
        else:
            pieces += (b",", sent)
    return b"".join([*pieces, b"]}]"]) if pieces else b"[]"


def marked(message: PromptMessage) -> list[Block]:
    """A message's blocks; the last that can bear it has the mark, if it is to have one."""
    blocks = [block for part in message.parts if (block := block_of(part)) is not None]
    if message.cached:
        for place in range(len(blocks) - 1, -1, -1):
            if blocks[place].get("type") in _BEARS_MARK and not is_blank(blocks[place]):
                blocks[place] = {**blocks[place], "cache_control": EPHEMERAL}
                break
    return blocks


def value_sent(value: Json) -> bytes:
    """A value as JSON that can be sent: text in valid Unicode, and no number that is none."""
    try:
        return _encoder.encode(value).encode()
    except UnicodeEncodeError:
        return _encoder.encode(_readable(value)).encode()


def items_sent(values: list[Block]) -> bytes:
    """The JSON of a list's items, without its brackets."""
    return value_sent(values)[1:-1]


def _plain(value: object) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is no JSON")


_encoder = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_plain
)


def _readable(value: Json) -> Json:
    """The same with every text in valid Unicode: a lone surrogate cannot be sent."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {str(_readable(name)): _readable(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_readable(each) for each in value]
    return value


def _said(message: PromptMessage) -> Said:
    role = "assistant" if message.role is Role.ASSISTANT else "user"
    blocks = _trimmed(marked(message))
    depends = any(_is_server_call(block) or _is_answer(block) for block in blocks)
    if role == "assistant" and blocks:
        depends |= blocks[-1].get("type") in THINKING
    return Said(role, blocks, items_sent(blocks), depends)


def _judged(said: Iterable[Said]) -> Iterable[_Turn]:
    turns = _without_dangling(_merged((each.role, each.blocks) for each in said))
    return [(role, _ended(blocks) if role == "assistant" else blocks) for role, blocks in turns]


def _merged(said: Iterable[_Turn]) -> list[_Turn]:
    """One message per turn, without empty ones. Results stand first: they follow their calls."""
    turns: list[_Turn] = []
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
    while last and (blocks[last - 1].get("type") in THINKING or is_blank(blocks[last - 1])):
        last -= 1
    return _trimmed(blocks[:last])


def _trimmed(blocks: list[Block]) -> list[Block]:
    """Without white space at either end: the API takes it between other blocks only."""
    said = [n for n, block in enumerate(blocks) if not is_blank(block)]
    return blocks[said[0] : said[-1] + 1] if said else []


def _without_dangling(turns: list[_Turn]) -> list[_Turn]:
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


def _goes_on(turn: _Turn) -> bool:
    role, blocks = turn
    return role == "assistant" or all(block.get("type") == "tool_result" for block in blocks)


def _is_server_call(block: Block) -> bool:
    return str(block.get("type")).endswith("_tool_use")


def _is_answer(block: Block) -> bool:
    return str(block.get("type")).endswith("_tool_result")
