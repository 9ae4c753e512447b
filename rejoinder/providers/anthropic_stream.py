"""The events of one streamed answer, put together.

Takes events as JSON, in whatever pieces the API cuts an answer: block by block, a block at once,
or the whole answer in its first event. Gives deltas (one for all words of a block that came
together), complete parts, and one `Reply` when, and only when, the answer was ended by the API.
Reads no bytes; `anthropic_events.py` does.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rejoinder.core.messages import Usage
from rejoinder.core.model import (
    CallDelta,
    PartDone,
    ReasoningDelta,
    Reply,
    StopReason,
    StreamItem,
    TextDelta,
    UsageSoFar,
)
from rejoinder.core.parts import Json, Part, ProviderBlock, ToolCall
from rejoinder.providers.anthropic_blocks import Block, part_of
from rejoinder.providers.errors import BrokenStreamError

STOPS: Mapping[str, StopReason] = {
    "end_turn": StopReason.END,
    "tool_use": StopReason.TOOL_USE,
    "max_tokens": StopReason.MAX_TOKENS,
    "stop_sequence": StopReason.STOP_SEQUENCE,
    "pause_turn": StopReason.PAUSE,
    "compaction": StopReason.PAUSE,
    "refusal": StopReason.REFUSAL,
    "model_context_window_exceeded": StopReason.CONTEXT_LENGTH,
}
_CUTTING = frozenset({StopReason.MAX_TOKENS, StopReason.CONTEXT_LENGTH, StopReason.REFUSAL})
_ARGUMENTS = "partial_json"
_NOT_EXTRA = frozenset({"type", "role", "content", "model", "usage"})


@dataclass
class _Open:
    """A block that is being written."""

    block: Block
    words: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    part: Part | None = None
    told: bool = False

    @property
    def identity(self) -> tuple[str, str]:
        return str(self.block.get("id")), str(self.block.get("name"))

    @property
    def is_call(self) -> bool:
        return str(self.block.get("type")).endswith("tool_use")


class Answer:
    """One answer, as far as it has come."""

    def __init__(self, names: Mapping[str, str], request_id: str | None = None) -> None:
        """Begin with nothing. `names` leads from a tool's name on the wire to its own."""
        self._names = names
        self._request_id = request_id
        self._blocks: list[_Open] = []
        self._places: dict[Json, int] = {}
        self._message: dict[str, Json] = {}
        self._usage: dict[str, Json] = {}
        self.ended = False

    def take(self, events: Iterable[Mapping[str, Json]], items: list[StreamItem]) -> bool:
        """Take events that came together, to the end of the answer; whether there were any.

        What they say is added to `items`. What does not fit the protocol breaks the stream, and
        what came before it counts.
        """
        said = _Said(self._places, self._said)
        some = False
        try:
            for event in events:
                some = True
                try:
                    more = _more(event)
                    if more is None:
                        said.tell(items)
                        items += [*self._take(event)]
                    else:
                        said.add(*more, items)
                except (AttributeError, KeyError, TypeError, ValueError) as error:
                    raise BrokenStreamError(f"an event does not fit: {error!r}") from error
                if self.ended:
                    break
        finally:
            said.tell(items)
        return some

    def require_end(self) -> None:
        """Refuse to call this an answer unless the API has ended it."""
        if not self.ended:
            raise BrokenStreamError("the stream ended without its last event")

    def _take(self, event: Mapping[str, Json]) -> Iterator[StreamItem]:
        match event:
            case {"type": "message_start", "message": Mapping() as message}:
                yield from self._begin(message)
            case {"type": "content_block_start", "index": index, "content_block": Mapping() as it}:
                if index in self._places:
                    _require_same(self._blocks[self._places[index]].block, it)
                    return
                yield from self._tell()
                self._places[index] = len(self._blocks)
                yield from self._open(it)
            case {"type": "content_block_delta", "index": index, "delta": Mapping() as delta}:
                place = self._places[index]
                self._grow(self._blocks[place], delta)
            case {"type": "content_block_stop", "index": index}:
                yield from self._close(self._places[index])
            case {"type": "message_delta", "delta": Mapping() as delta}:
                more = {k: v for k, v in event.items() if k not in ("type", "delta", "usage")}
                self._note({**more, **delta}, event.get("usage"))
            case {"type": "message_stop"}:
                yield from self._end()
            case _:
                pass  # a ping, or something newer

    def _begin(self, message: Mapping[str, Json]) -> Iterator[StreamItem]:
        if self._message:
            if self._blocks and message.get("id") is None:
                raise BrokenStreamError("an answer without a name begins again")
            _require_same(self._message, message)
            return
        self._note(message, message.get("usage"))
        if self._usage:
            yield UsageSoFar(_usage(self._usage))
        content = message.get("content")
        for block in content if isinstance(content, list) else ():
            place = len(self._blocks)
            yield from self._open(block)
            yield from self._close(place)

    def _note(self, said: Mapping[str, Json], usage: Json) -> None:
        """Keep what is newest: counts are totals, and what is left out stands."""
        self._message |= {k: v for k, v in said.items() if v is not None}
        if isinstance(usage, Mapping):
            self._usage |= {k: v for k, v in usage.items() if v is not None}

    def _open(self, block: Mapping[str, Json]) -> Iterator[StreamItem]:
        place, it = len(self._blocks), _Open(dict(block))
        self._blocks.append(it)
        if it.is_call:
            call_id, name = it.identity
            yield CallDelta(place, call_id, self._names.get(name, name))
        for kind in ("text", "thinking"):
            if block["type"] == kind and isinstance(text := block.get(kind), str):
                yield from self._said(place, kind, [text])
        if block["type"] == "fallback" and isinstance(to := block.get("to"), Mapping):
            self._note({"model": to.get("model")}, None)

    def _said(self, place: int, key: str, texts: list[str]) -> Iterator[StreamItem]:
        """More of a block's text, as one delta; a delta without text is none."""
        it, text = self._blocks[place], "".join(texts)
        if it.part is not None:
            raise BrokenStreamError("a block goes on after its end")
        (it.arguments if key == _ARGUMENTS else it.words).append(text)
        count = len(texts) - texts.count("")
        if not count:
            return
        if key == "text":
            yield TextDelta(place, text, count)
        elif key == "thinking":
            yield ReasoningDelta(place, text, count)
        else:
            call_id, name = it.identity
            yield CallDelta(place, call_id, self._names.get(name, name), text, count)

    def _grow(self, it: _Open, delta: Mapping[str, Json]) -> None:
        """Take what else there is of a block."""
        match delta:
            case {"type": "citations_delta", "citation": citation}:
                cited = it.block.get("citations")
                it.block["citations"] = [*(cited if isinstance(cited, list) else ()), citation]
            case _:  # a signature, a summary, or something newer: each comes whole
                it.block |= {k: v for k, v in delta.items() if k != "type" and v is not None}

    def _close(self, place: int) -> Iterator[StreamItem]:
        it = self._blocks[place]
        if it.part is not None:
            return
        for kind, key in (("text", "text"), ("thinking", "thinking")):
            if it.block["type"] == kind:
                it.block[key] = "".join(it.words)
        if it.is_call:
            if not it.arguments and it.block.get("input"):
                text = json.dumps(it.block["input"], ensure_ascii=False)
                call_id, name = it.identity
                yield CallDelta(place, call_id, self._names.get(name, name), text)
            else:
                it.block["input"] = _arguments("".join(it.arguments))
        it.part = part_of(it.block, self._names)
        if not it.is_call:
            it.told = True
            yield PartDone(place, it.part)

    def _tell(self) -> Iterator[StreamItem]:
        """Calls are told late: only what comes after shows that the last one was not cut off."""
        for place, it in enumerate(self._blocks):
            if it.part is not None and not it.told and not _is_of_code(it.part):
                it.told = True
                yield PartDone(place, it.part)

    def _end(self) -> Iterator[StreamItem]:
        reason = self._message.get("stop_reason")
        if not isinstance(reason, str):
            raise BrokenStreamError("the answer ended without a reason to stop")
        for place in range(len(self._blocks)):
            yield from self._close(place)
        stop = STOPS.get(reason, StopReason.END)
        parts = [_settled(it.part, self._blocks) for it in self._blocks if it.part is not None]
        cut: tuple[Part, ...] = ()
        if stop in _CUTTING and parts and isinstance(parts[-1], ToolCall):
            cut = (parts.pop(),)
        for place, (it, part) in enumerate(zip(self._blocks, parts, strict=False)):
            if not it.told:
                yield PartDone(place, part)
        self.ended = True
        yield Reply(
            parts=tuple(parts),
            stop=stop,
            usage=_usage(self._usage),
            model=str(self._message.get("model", "")),
            request_id=self._request_id,
            cut=cut,
            extra=self._extra(),
        )

    def _extra(self) -> dict[str, Json]:
        extra = {k: v for k, v in self._message.items() if k not in _NOT_EXTRA}
        return {**extra, "usage": self._usage}


class _Said:
    """Deltas of one block, one right after the other: told as one, and as cheap as one."""

    def __init__(
        self,
        places: Mapping[Json, int],
        told: Callable[[int, str, list[str]], Iterator[StreamItem]],
    ) -> None:
        self._places = places
        self._told = told
        self._index: Json = None
        self._key = ""
        self._texts: list[str] = []

    def add(self, index: Json, key: str, text: str, items: list[StreamItem]) -> None:
        if index != self._index or key != self._key:
            self.tell(items)
            self._place = self._places[index]
            self._index, self._key = index, key
        self._texts.append(text)

    def tell(self, items: list[StreamItem]) -> None:
        key, texts = self._key, self._texts
        self._key, self._texts = "", []
        if texts:
            items += self._told(self._place, key, texts)


def _require_same(known: Mapping[str, Json], again: Mapping[str, Json]) -> None:
    """Refuse another answer, or block, in the place of one: a gateway has begun anew."""
    if any(known.get(key) != again.get(key) for key in ("type", "id")):
        raise BrokenStreamError("another answer begins before the end of this one")


def _more(event: Mapping[str, Json]) -> tuple[Json, str, str] | None:
    """More text, which is what nearly all events are: of which block, which, and what; or None."""
    delta = event.get("delta")
    if type(delta) is not dict:
        return None
    kind = delta.get("type")
    if kind == "text_delta":
        key = "text"
    elif kind == "thinking_delta":
        key = "thinking"
    elif kind == "input_json_delta":
        key = _ARGUMENTS
    else:
        return None
    text = delta.get(key)
    if type(text) is not str or event.get("type") != "content_block_delta":
        return None
    return event["index"], key, text


def _arguments(text: str) -> Mapping[str, Json]:
    """A call's arguments. Text that is no JSON object is kept so that no tool will accept it."""
    if not text.strip():
        return {}
    try:
        found: Json = json.loads(text)
        json.dumps(found, allow_nan=False)
    except ValueError:
        return {"INVALID_JSON": text}
    return found if isinstance(found, Mapping) else {"INVALID_JSON": text}


def _is_of_code(part: Part) -> bool:
    """Whether code that runs on the server made this call."""
    caller = (part.extra or {}).get("caller") if isinstance(part, ToolCall) else None
    return isinstance(caller, Mapping) and "tool_id" in caller


def _settled(part: Part, blocks: list[_Open]) -> Part:
    """The same; a call whose code has already ended is not waiting for us any more."""
    if not isinstance(part, ToolCall) or part.provider_executed or not _is_of_code(part):
        return part
    extra = part.extra or {}
    caller = extra.get("caller")
    code = caller.get("tool_id") if isinstance(caller, Mapping) else None
    ended = {
        it.part.block.get("tool_use_id") for it in blocks if isinstance(it.part, ProviderBlock)
    }
    if code not in ended:
        return part
    return ToolCall(
        part.call_id,
        part.name,
        part.arguments,
        provider_executed=True,
        extra={**extra, "type": "tool_use"},
    )


def _usage(counts: Mapping[str, Any]) -> Usage:
    details = counts.get("output_tokens_details")
    return Usage(
        input_tokens=counts.get("input_tokens"),
        output_tokens=counts.get("output_tokens"),
        cache_read_tokens=counts.get("cache_read_input_tokens"),
        cache_write_tokens=counts.get("cache_creation_input_tokens"),
        reasoning_tokens=details.get("thinking_tokens") if isinstance(details, Mapping) else None,
    )
