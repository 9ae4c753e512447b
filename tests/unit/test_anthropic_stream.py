"""Events that came together: what they are told as, and what a broken one leaves."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from anthropic import APIStatusError
from hypothesis import given
from hypothesis import strategies as st

from rejoinder.core.limits import MOST_TOKENS
from rejoinder.core.messages import Usage
from rejoinder.core.model import (
    CallDelta,
    PartDone,
    ReasoningDelta,
    Reply,
    StreamItem,
    TextDelta,
    UsageSoFar,
)
from rejoinder.core.parts import Text, ToolCall
from rejoinder.providers.anthropic_events import Events
from rejoinder.providers.anthropic_stream import Answer
from rejoinder.providers.errors import BrokenStreamError, classify
from rejoinder.testing.conformance import check_answer
from tests.integration.sse import USAGE, block, call, end, event, start, text

if TYPE_CHECKING:
    from collections.abc import Iterable

WORDS = start() + event(
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
)


def delta(word: str, index: int = 0) -> bytes:
    told = {"type": "text_delta", "text": word}
    return event({"type": "content_block_delta", "index": index, "delta": told})


class Heard:
    """An answer that comes in these chunks: the batches, and the error that ended it, if any."""

    def __init__(self, *chunks: bytes) -> None:
        self.batches: list[list[StreamItem]] = []
        self.error: Exception | None = None
        self.counted: list[bool] = []
        request = httpx2.Request("POST", "http://api.invalid")
        answer, events = Answer({}), Events(httpx2.Response(200, request=request))
        for chunk in chunks:
            self.batches.append([])
            try:
                self.counted.append(answer.take(events.take(chunk), self.batches[-1]))
            except Exception as error:  # noqa: BLE001  # which one is for the test to say
                self.error = error
                break
            if answer.ended:
                break

    @property
    def items(self) -> list[StreamItem]:
        return [item for batch in self.batches for item in batch]

    @property
    def deltas(self) -> list[StreamItem]:
        return [item for item in self.items if not isinstance(item, UsageSoFar)]


def test_words_that_came_together_are_one_delta_that_knows_how_many() -> None:
    heard = Heard(WORDS + delta("Hel") + delta("lo"), delta(" you"), delta(",") + delta(" there"))
    assert heard.deltas == [
        TextDelta(0, "Hello", 2),
        TextDelta(0, " you", 1),
        TextDelta(0, ", there", 2),
    ]


def test_only_neighbours_of_one_block_are_joined() -> None:
    thinking = [{"type": "thinking_delta", "thinking": word} for word in ("H", "m")]
    opened = block(0, {"type": "thinking", "thinking": ""}, *thinking)
    heard = Heard(start() + opened + text(1, "a", "b") + text(2, "c") + call(3, "t", '{"x"', ":1}"))
    told = [item for item in heard.deltas if not isinstance(item, PartDone)]
    assert told == [
        ReasoningDelta(0, "Hm", 2),
        TextDelta(1, "ab", 2),
        TextDelta(2, "c", 1),
        CallDelta(3, "t", "add"),
        CallDelta(3, "t", "add", '{"x":1}', 2),
    ]
    mixed = Heard(WORDS, delta("a") + event({"type": "ping"}) + delta("b"))
    assert mixed.batches[-1] == [TextDelta(0, "a"), TextDelta(0, "b")]


def test_blocks_that_are_written_in_turns_are_not_mixed_up() -> None:
    second = {"type": "content_block_start", "index": 1, "content_block": {"type": "text"}}
    heard = Heard(WORDS + event(second), delta("a") + delta("b", 1) + delta("c") + delta("d"))
    assert heard.batches[-1] == [TextDelta(0, "a"), TextDelta(1, "b"), TextDelta(0, "cd", 2)]


def test_a_delta_without_words_is_none() -> None:
    heard = Heard(WORDS, delta("") + delta("a") + delta("") + delta("b"), delta(""))
    assert heard.batches[1:] == [[TextDelta(0, "ab", 2)], []]
    assert heard.counted[-1], "but a sign of life"


def test_part_of_an_event_or_a_comment_is_no_sign_of_life() -> None:
    heard = Heard(WORDS + delta("a")[:9], delta("a")[9:-1], b"\n", b": still here\n\n")
    assert heard.counted == [True, False, True, False]
    assert heard.deltas == [TextDelta(0, "a")]


@pytest.mark.parametrize(
    "broken",
    [
        b'event: x\ndata: {"type": \n\n',
        b"event: x\ndata: 7\n\n",
        b"event: x\ndata: {},{}\n\n",
        b"event: x\ndata: \xff\n\n",
        b"event: x\ndata: \n\n"[:-3] + b"\xff\n\n",
        delta("?", 4),
        event({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "?"}}),
        event({"type": "content_block_start", "index": 1, "content_block": {"no": "type"}}),
        start(id="msg_2"),
        delta("?").replace(b"text_delta", b"text_delta\xff"),
    ],
)
def test_a_broken_event_takes_none_with_it_that_came_before_in_the_same_chunk(
    broken: bytes,
) -> None:
    heard = Heard(WORDS + delta("a") + delta("b") + broken + delta("c"))
    assert heard.deltas == [TextDelta(0, "ab", 2)]
    assert isinstance(heard.error, BrokenStreamError)


def test_halves_of_events_are_not_put_together() -> None:
    halves = b'event: x\ndata: {"type":"ping"},{"type":"ping"}\n\n'
    halves += b'event: x\ndata: {"a":[{}\n\nevent: x\ndata: {}]}\n\n'
    heard = Heard(WORDS + delta("a") + halves)
    assert heard.deltas == [TextDelta(0, "a")]
    assert isinstance(heard.error, BrokenStreamError)


def test_an_error_after_words_in_the_same_chunk_comes_after_them() -> None:
    said: dict[str, Any] = {"type": "error", "error": {"type": "overloaded_error", "message": "Oh"}}
    heard = Heard(WORDS + delta("a") + delta("b") + event(said) + delta("c"))
    assert heard.deltas == [TextDelta(0, "ab", 2)]
    assert isinstance(heard.error, APIStatusError)
    assert heard.error.body == said


@pytest.mark.parametrize("more", [b"event: x\ndata: {\n\n", event({"type": "error"}), b"\xff\n\n"])
def test_nothing_matters_after_the_end(more: bytes) -> None:
    heard = Heard(WORDS + delta("a") + end() + more)
    assert isinstance(heard.items[-1], Reply)
    assert heard.error is None


def test_spaces_around_an_event_do_not_matter() -> None:
    heard = Heard(WORDS.replace(b"data: ", b"data:  \t"), delta("a").replace(b"\n\n", b" \n\n"))
    assert heard.deltas == [TextDelta(0, "a")]


words = st.lists(st.text(), max_size=8)


@given(st.data(), words, words)
def test_however_it_is_cut_the_answer_and_the_count_are_the_same(
    data: st.DataObject, said: list[str], arguments: list[str]
) -> None:
    sent = start() + text(0, *said) + call(1, "t", *arguments) + end("tool_use")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=10)))
    bounds = [0, *cuts, len(sent)]
    chunks = [sent[a:b] for a, b in pairwise(bounds)]
    heard = Heard(*chunks)
    assert heard.error is None
    assert check_answer(heard.items) == check_answer(Heard(sent).items)
    assert counts(heard.items, TextDelta) == sum(map(bool, said))
    assert counts(heard.items, CallDelta) == 1 + sum(map(bool, arguments))
    assert "".join(i.text for i in heard.items if isinstance(i, TextDelta)) == "".join(said)


def counts(items: Iterable[StreamItem], kind: type[TextDelta | CallDelta]) -> int:
    return sum(item.count for item in items if isinstance(item, kind))


finite = st.floats(allow_nan=False, allow_infinity=False)


@given(st.recursive(st.none() | st.text() | finite | st.integers(), st.lists))
def test_events_are_read_as_json_is(value: object) -> None:
    data = json.dumps({"type": "new", "value": value}, ensure_ascii=False)
    sent = f"event: new\ndata: {data}\n\n".encode("utf-8", "surrogatepass")
    (found,) = Events(httpx2.Response(200)).take(sent)
    assert json.dumps(found, ensure_ascii=False) == data


FIRST = start(id="msg_a") + text(0, "Once", " upon") + call(1, "a", '{"x"', ":1}") + end("tool_use")
SECOND = start(id="msg_b") + text(0, "There", " was") + text(1, "a king") + end()


@given(st.integers(0, len(FIRST)), st.integers(1, 400))
def test_of_two_generations_in_one_body_none_gets_parts_of_the_other(cut: int, size: int) -> None:
    sent = FIRST[:cut] + SECOND
    heard = Heard(*(sent[at : at + size] for at in range(0, len(sent), size)))
    replies = [item for item in heard.items if isinstance(item, Reply)]
    assert bool(replies) is (heard.error is None)
    assert all(
        reply in (check_answer(Heard(FIRST).items), check_answer(Heard(SECOND).items))
        for reply in replies
    )
    if replies:
        check_answer(heard.items)
    elif heard.error is not None:
        assert isinstance(heard.error, BrokenStreamError)


def test_another_answer_while_one_is_open_is_tried_again_and_the_same_one_is_ignored() -> None:
    again = start(id="msg_b", usage={"input_tokens": 99, "output_tokens": 99})
    heard = Heard(start(id="msg_a"), text(0, "Hel"), again, text(1, "lo"), end())
    assert isinstance(heard.error, BrokenStreamError)
    same = Heard(start(), text(0, "Hel"), start(content=[{"type": "text"}]), text(1, "lo"), end())
    assert check_answer(same.items).parts == (Text("Hel"), Text("lo"))
    nameless = start(id=None)
    assert isinstance(Heard(nameless, text(0, "Hel"), nameless).error, BrokenStreamError)
    assert Heard(nameless, nameless, text(0, "Hel"), end()).error is None


def test_a_block_that_begins_twice_is_one_block() -> None:
    opened = event(
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    )
    heard = Heard(start(), opened, delta("Hel"), opened, delta("lo"), text(1, "!"), end())
    assert check_answer(heard.items).parts == (Text("Hello"), Text("!"))
    wire = {"type": "tool_use", "id": "t", "name": "add", "input": {}}
    twice = event({"type": "content_block_start", "index": 0, "content_block": wire})
    reply = check_answer(Heard(start(), twice, call(0, "t", "{}"), end("tool_use")).items)
    assert reply.parts == (ToolCall("t", "add", {}),)


@pytest.mark.parametrize("more", [text(0, "again"), call(0, "t"), delta("more")])
def test_another_block_in_the_place_of_one_that_has_ended_is_no_answer(more: bytes) -> None:
    heard = Heard(start(), text(0, "Hello"), more, end())
    assert isinstance(heard.error, BrokenStreamError)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b'{"type": "error", "error": {"type": "overloaded_error"}}', "overloaded"),
        (b'{"error": {"type": "overloaded_error", "message": "Oh"}}', "overloaded"),
        (b'{"type": "overloaded_error", "message": "Oh"}', "overloaded"),
        (b'{"message": "Oh"}', "generic"),
        (b"Overloaded", "generic"),
        (b'"Overloaded"', "generic"),
        (b"{", "generic"),
        (b"", "generic"),
    ],
)
@pytest.mark.parametrize("sent", [b"event: error\ndata: %b\n\n", b"data:%b\nevent:error\n\n"])
def test_an_error_is_one_by_the_name_of_its_event(sent: bytes, data: bytes, kind: str) -> None:
    heard = Heard(WORDS + delta("a") + sent % data + delta("b"))
    assert heard.deltas == [TextDelta(0, "a")]
    assert isinstance(heard.error, APIStatusError)
    failure = classify(heard.error, "anthropic").failure
    assert (failure.kind, failure.retryable) == (kind, True)


@pytest.mark.parametrize(
    ("said", "known"),
    [
        ("7", 7),
        ("-7", 0),
        ("3000000000", MOST_TOKENS),
        ("7.5", None),
        ('"7"', None),
        ("true", None),
        ("[]", None),
        ("null", None),
        ("NaN", None),
        ("-Infinity", None),
        ("1e999", None),
    ],
)
def test_counts_that_cannot_be_stored_are_none(said: str, known: int | None) -> None:
    names = ("input_tokens", "output_tokens", "cache_read_input_tokens", "novel_tokens")
    counts = ", ".join(f'"{name}": {said}' for name in names)
    began = start().replace(json.dumps(USAGE).encode(), f"{{{counts}}}".encode())
    assert said.encode() in began
    ended = end().replace(b'{"output_tokens": 5}', b"null")
    reply = check_answer(Heard(began + text(0, "a") + ended).items)
    assert reply.usage == Usage(known, known, known)
    json.dumps(reply.extra, allow_nan=False)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e999"])
def test_arguments_that_no_json_can_hold_fit_no_tool(value: str) -> None:
    reply = check_answer(Heard(start() + call(0, "t", f'{{"a": {value}}}') + end("tool_use")).items)
    assert reply.parts == (ToolCall("t", "add", {"INVALID_JSON": f'{{"a": {value}}}'}),)


@pytest.mark.parametrize("line", ["\n", "\r\n", "\r"])
def test_an_event_of_many_lines_is_one_object(line: str) -> None:
    data = json.dumps({"type": "ping", "more": [1, 2]}, indent=1)
    lines = [": a comment", "id: 7", "event: ping", *(f"data: {x}" for x in data.split("\n"))]
    sent = (line.join(lines) + line * 2).encode()
    for size in (1, 7, len(sent)):
        events = Events(httpx2.Response(200))
        chunks = [sent[at : at + size] for at in range(0, len(sent), size)]
        found = [each for chunk in chunks for each in events.take(chunk)] + [*events.end()]
        assert found == [{"type": "ping", "more": [1, 2]}]


@pytest.mark.parametrize("line", [b"\n", b"\r\n"])
@pytest.mark.parametrize("every", [2**30, 100])
def test_a_long_event_in_small_chunks_costs_time_by_its_length(line: bytes, every: int) -> None:
    def seconds(size: int) -> float:
        words = "x" * size
        parts = [words[at : at + every] for at in range(0, size, every)]
        data = json.dumps({"type": "ping", "words": parts}).replace(", ", ",\n").split("\n")
        lines = [b"event: ping", *(b"data: " + each.encode() for each in data), b"", b""]
        sent = line.join(lines)
        events = Events(httpx2.Response(200))
        began = time.thread_time()
        found = [
            each for at in range(0, len(sent), 256) for each in events.take(sent[at : at + 256])
        ] + [*events.end()]
        took = time.thread_time() - began
        assert found == [{"type": "ping", "words": parts}]
        return took

    small, large = 2**19, 2**23
    assert min(seconds(large) for _ in range(2)) < 4 * 16 * min(seconds(small) for _ in range(3))
