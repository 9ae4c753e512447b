"""The scripted provider: which step it plays, and how it streams, fails and stops."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rejoinder.core.failures import FailureKind
from rejoinder.core.messages import Usage
from rejoinder.core.model import (
    CallDelta,
    PartDone,
    ReasoningDelta,
    Reply,
    StopReason,
    StreamItem,
    TextDelta,
)
from rejoinder.core.parts import Reasoning, Text, ToolCall, text_of
from rejoinder.providers.errors import ProviderError
from rejoinder.providers.scripted import _KINDS, ScriptedProvider
from rejoinder.testing import call, end, fail, hang, say, think, together
from rejoinder.testing.conformance import check_answer, check_stops
from tests.scripted import PROVIDER, answer, failure, items, reply, request, results, said, user

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from rejoinder.core.model import Batch
    from rejoinder.testing.scripts import ScriptData


def test_a_step_streams_thinking_text_and_parallel_calls() -> None:
    step = together(
        think("Hm, two."),
        say("Let me see."),
        call("weather", city="Bonn", call_id="a"),
        call("weather", {"city": "Lima"}, call_id="b"),
    )
    streamed = items(request([step]))
    end_of_it = check_answer(streamed)
    assert end_of_it.parts == (
        Reasoning("Hm, two.", signature="scripted"),
        Text("Let me see."),
        ToolCall("a", "weather", {"city": "Bonn"}),
        ToolCall("b", "weather", {"city": "Lima"}),
    )
    assert end_of_it.stop is StopReason.TOOL_USE
    assert [i.text for i in streamed if isinstance(i, TextDelta)] == ["Let", " me", " see."]
    assert [i.text for i in streamed if isinstance(i, ReasoningDelta)] == ["Hm,", " two."]
    begins = [i for i in streamed if isinstance(i, CallDelta) and not i.arguments]
    assert [(i.index, i.call_id, i.name) for i in begins] == [
        (2, "a", "weather"),
        (3, "b", "weather"),
    ]
    assert [i.index for i in streamed if isinstance(i, PartDone)] == [0, 1, 2, 3]


def test_ids_of_calls_differ_between_attempts_unless_they_are_given() -> None:
    ids = set()
    for attempt in range(3):
        (part,) = reply(request([call("a")], attempt=attempt)).parts
        assert isinstance(part, ToolCall)
        ids.add(part.call_id)
    assert len(ids) == 3


def test_the_conversation_alone_says_which_step_comes() -> None:
    script = [call("a"), say("one"), say("two")]
    talk = [user("Hi"), answer(ToolCall("0", "a", {})), results("x"), answer(), user("More")]
    assert reply(request(script, *talk[:1])).stop is StopReason.TOOL_USE
    assert said(request(script, *talk[:3])) == "one"
    assert said(request(script, *talk)) == "two"
    over = failure(request(script, *talk, answer(), user("Even more")))
    assert over.failure.kind == FailureKind.CONFIG
    assert "no step 4" in over.failure.message


def test_turns_are_counted_by_what_the_user_said() -> None:
    script: ScriptData = [[call("a"), say("first")], say("second"), [hang(), say("third")]]
    stopped_early = [user("1"), user("2")]
    assert said(request(script, *stopped_early)) == "second"
    assert said(request(script, user("1"), answer(ToolCall("0", "a", {})), results("x"))) == "first"
    assert said(request(script, user("1"), answer(), user("2"))) == "second"
    assert "turn 4" in failure(request(script, *[user("x")] * 4)).failure.message
    over = failure(request(script, user("1"), answer(), answer()))
    assert "turn 1, step 3" in over.failure.message


def test_a_script_can_repeat_its_end() -> None:
    steps = {"steps": [say("a"), say("b")], "repeat": True}
    assert said(request(steps, user("1"), *[answer()] * 7)) == "b"
    turns = {"turns": [[say("a")], [say("b"), say("c")]], "repeat": True}
    assert said(request(turns, *[user("x")] * 5)) == "b"
    assert said(request(turns, *[user("x")] * 5, answer())) == "c"


@given(st.integers(0, 5), st.integers(0, 8), st.integers(0, 3))
def test_the_choice_depends_on_nothing_but_the_request(
    users: int, answers: int, attempt: int
) -> None:
    script = [together(fail(times=2), say(f"{n}")) for n in range(9)]
    asked = request(script, *[user("u")] * (users + 1), *[answer()] * answers, attempt=attempt)
    for provider in (PROVIDER, ScriptedProvider()):
        if attempt < 2:
            with pytest.raises(ProviderError):
                reply(asked, provider)
        else:
            assert text_of(reply(asked, provider).parts) == str(answers)


def test_failures_come_first_and_then_the_step_succeeds_in_any_process() -> None:
    script = [
        fail("overloaded", times=2),
        fail("rate_limit", retry_after=7, status=420, message="Slow down."),
        say("at last"),
        say("next"),
    ]
    kinds = [failure(request(script, attempt=n)).failure.kind for n in range(3)]
    assert kinds == ["overloaded", "overloaded", "rate_limit"]
    assert said(request(script, attempt=3)) == "at last"
    assert said(request(script, user("x"), answer())) == "next"
    limited = failure(request(script, attempt=2))
    assert limited.retry_after == 7
    assert limited.failure.status_code == 420
    assert limited.failure.message == "Slow down."
    assert limited.failure.retryable


@pytest.mark.parametrize("kind", list(FailureKind))
def test_every_kind_of_failure_can_be_played(kind: FailureKind) -> None:
    found = failure(request([fail(kind)]))
    status, retryable = _KINDS.get(kind, (None, False))
    assert (found.failure.kind, found.failure.status_code) == (kind.value, status)
    assert found.failure.retryable is retryable
    assert (
        failure(request([fail(kind, retryable=not retryable)])).failure.retryable is not retryable
    )


def test_a_failure_that_ends_the_script_or_has_no_end_stays() -> None:
    for script in ([fail("auth")], [together(fail("auth", times=None), say("never"))]):
        for attempt in (0, 1, 99):
            assert failure(request(script, attempt=attempt)).failure.kind == "auth"


def test_a_failure_can_come_in_the_middle() -> None:
    streamed: list[StreamItem] = []

    async def listen() -> None:
        async for batch in PROVIDER.stream(request([fail(after=2), say("one two three four")])):
            streamed.extend(batch)

    with pytest.raises(ProviderError):
        anyio.run(listen)
    assert streamed == [TextDelta(0, "one"), TextDelta(0, " two")]


def test_a_failure_after_everything_comes_instead_of_the_end() -> None:
    assert failure(request([together(fail(after=99), say("all of it"))])).failure.kind


def test_a_stream_can_end_without_its_end_or_with_a_bug() -> None:
    cut = items(request([together(fail("truncated", after=1), say("one two"))]))
    assert cut == [TextDelta(0, "one")]
    with pytest.raises(RuntimeError, match="oh no"):
        items(request([fail("bug", message="oh no")]))


@pytest.mark.parametrize(("after", "heard"), [(0, 0), (2, 2), (99, 3)])
def test_silence_comes_after_so_many_chunks_and_can_be_stopped(after: int, heard: int) -> None:
    script = [together(say("one two three"), hang(after))]
    streamed: list[StreamItem] = []
    closed: list[bool] = []

    async def listen() -> None:
        try:
            async with aclosing(PROVIDER.stream(request(script))) as stream:
                async for batch in stream:
                    streamed.extend(batch)
        finally:
            closed.append(True)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(listen)
            await anyio.wait_all_tasks_blocked()
            assert not closed
            group.cancel_scope.cancel()

    anyio.run(main)
    assert sum(isinstance(item, TextDelta) for item in streamed) == heard
    assert closed
    assert not any(isinstance(item, Reply) for item in streamed)


def test_a_stopped_stream_conforms() -> None:
    closed: list[bool] = []

    async def watched() -> AsyncGenerator[Batch, None]:
        try:
            async for batch in PROVIDER.stream(request([together(say("a b"), hang(1))])):
                yield batch
        finally:
            closed.append(True)

    anyio.run(lambda: check_stops(watched(), lambda: bool(closed)))


def test_delay_and_pace_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(anyio, "sleep", sleep)
    assert said(request([say("abcd", delay=3, pace=0.5, chunk=1)])) == "abcd"
    assert waited == [3, 0.5, 0.5, 0.5]


def test_stop_reason_and_usage_can_be_scripted() -> None:
    ended = reply(
        request([together(say("a"), end("refusal", input_tokens=10, cache_read_tokens=4))])
    )
    assert ended.stop is StopReason.REFUSAL
    assert ended.usage == Usage(input_tokens=10, cache_read_tokens=4)
    estimated = reply(request([say("a" * 400)], user("b" * 40)))
    assert (estimated.usage.input_tokens, estimated.usage.output_tokens) == (11, 101)
    assert estimated.stop is StopReason.END
    assert estimated.model == "test"
    assert estimated.request_id == "scripted, step 1, attempt 1"


def test_the_output_limit_cuts_the_last_call_off() -> None:
    step = together(say("x"), call("a", call_id="1"), call("b", call_id="2"), end("max_tokens"))
    ended = reply(request([step]))
    assert ended.parts == (Text("x"), ToolCall("1", "a", {}))
    assert ended.cut == (ToolCall("2", "b", {}),)
    assert reply(request([together(say("x"), end("max_tokens"))])).cut == ()


def test_an_answer_can_be_empty() -> None:
    assert reply(request([say("")])).parts == ()
