"""What a dead worker had written is put together again from what readers had seen."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
import redis
from uuid_utils.compat import uuid7

from rejoinder.core.parts import Text, ToolCall
from rejoinder.streams import EventWriter
from tasks.live import what_was_written
from tests.conftest import RedisSpace

VERSION = 7


class Stream:
    """A chat's stream, written as a worker writes it."""

    def __init__(self, space: RedisSpace) -> None:
        self.client = redis.Redis.from_url(space.url)
        self.prefix = space.prefix
        self.chat_id: UUID = uuid7()
        self._writer = EventWriter(self.client, space.prefix)
        self._seq = 0

    def claim(self) -> None:
        self._seq = 0
        self.event("status", status="running")

    def event(self, kind: str, **data: Any) -> None:
        self._writer.add(self.chat_id, kind, data, now=False)
        self._writer.flush()

    def part(self, of: str, index: int, text: str | None = None, **more: Any) -> None:
        self._seq += 1
        data = {"of": of, "index": index, "history_version": VERSION, "attempt": 0, **more}
        data |= {"seq": self._seq, "n": 1} | ({} if text is None else {"text": text})
        self.event("part", **data)

    def written(self, version: int = VERSION) -> Any:
        found = what_was_written(self.client, self.prefix, self.chat_id, version)
        return found and found.parts


@pytest.fixture
def stream(redis_space: RedisSpace) -> Iterator[Stream]:
    made = Stream(redis_space)
    made.claim()
    yield made
    made._writer.close()
    made.client.close()


def call(stream: Stream, index: int, *pieces: str, ended: bool = True) -> None:
    for piece in pieces:
        stream.part("tool_call", index, piece, call_id=f"call-{index}", name="look_up")
    if ended:
        stream.part("end", index)


def test_words_and_complete_calls_are_kept(stream: Stream) -> None:
    stream.part("reasoning", 0, "Hm.")
    stream.part("end", 0)
    stream.part("text", 1, "Let me ")
    stream.part("text", 1, "look.")
    stream.part("end", 1)
    call(stream, 2, '{"q": ', '"x"}')
    call(stream, 3, '{"q": "half', ended=False)
    stream.event("status", status="interrupting", version=9)
    stream.event("queue", length=1)
    assert stream.written() == (Text("Let me look."), ToolCall("call-2", "look_up", {"q": "x"}))


def test_words_without_an_end_are_kept(stream: Stream) -> None:
    stream.part("text", 0, "Half a sen")
    assert stream.written() == (Text("Half a sen"),)


def test_arguments_that_no_json_parser_takes_are_left_out(stream: Stream) -> None:
    call(stream, 0, '{"q": ' + "[" * 100_000)
    stream.part("text", 1, "Words.")
    assert stream.written() == (Text("Words."),)


def test_a_long_answer_is_found_whole(stream: Stream) -> None:
    words = [f"word{number} " for number in range(700)]
    for word in words:
        stream.part("text", 0, word)
    assert stream.written() == (Text("".join(words)),)


def test_what_comes_after_a_hole_is_not_told(stream: Stream) -> None:
    stream.part("text", 0, "One. ")
    stream._seq += 1  # an event that Redis did not take
    stream.part("text", 0, "Three.")
    assert stream.written() == (Text("One. "),)


def test_without_its_beginning_nothing_is_told(stream: Stream) -> None:
    stream._seq += 1
    stream.part("text", 0, "and so on.")
    assert stream.written() is None


def test_only_the_newest_attempt_counts(stream: Stream) -> None:
    stream.part("text", 0, "The first worker's words.")
    stream.claim()
    stream.part("text", 0, "The second's.")
    assert stream.written() == (Text("The second's."),)


def test_an_attempt_that_was_never_told_to_be_over_is_another_one(stream: Stream) -> None:
    stream.part("text", 0, "The first attempt's words, ")
    stream._seq = 1
    stream.part("text", 0, "and the second's, without its beginning.", attempt=1)
    assert stream.written() is None


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("message", {"id": 3, "role": "assistant", "version": 8}),
        ("preview_reset", {}),
        ("history_reset", {"from": 1, "version": 8}),
        ("status", {"status": "pending", "version": 8}),
        ("status", {"status": "running"}),
    ],
)
def test_what_was_stored_or_given_up_is_not_told_twice(
    stream: Stream, kind: str, data: dict[str, Any]
) -> None:
    stream.part("text", 0, "Words.")
    stream.event(kind, **data)
    assert stream.written() is None


def test_parts_of_another_history_do_not_count(stream: Stream) -> None:
    stream.part("text", 0, "Words.")
    assert stream.written(VERSION + 1) is None


def test_without_a_stream_there_is_nothing(stream: Stream) -> None:
    stream.client.delete(f"{stream.prefix}chat:{stream.chat_id}")
    assert stream.written() is None


def test_a_server_that_is_gone_costs_only_the_words() -> None:
    nobody = redis.Redis(host="127.0.0.1", port=1)
    assert what_was_written(nobody, "x:", uuid7(), VERSION) is None
