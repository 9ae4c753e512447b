"""When a history is summarised, when that cannot help, and when it is left alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rejoinder.core.decide import (
    Action,
    Call,
    Compact,
    Entry,
    Finish,
    Generate,
    Policy,
    RunTools,
    Snapshot,
    StopAtLimit,
    TooLong,
    decide,
)
from rejoinder.core.messages import CallKind, CallState, Role, TurnKind
from rejoinder.core.model import StopReason
from rejoinder.core.parts import Text, ToolCall, ToolResult

POLICY = Policy(max_steps=10, compact_from=700, context_limit=1_000)
SYSTEM = Entry(1, Role.SYSTEM, (Text("Be kind."),))
USER = Entry(2, Role.USER, (Text("hello"),))
SUMMARY = Entry(3, Role.USER, (Text("So far."),), compressed=True)
RESULT = Entry(5, Role.TOOL, (ToolResult("c", "ok"),))
LONG = Entry(6, Role.USER, (Text("x" * 5_000),))


def asks(tokens: int | None) -> Entry:
    return Entry(4, Role.ASSISTANT, (ToolCall("c", "look_up", {}),), context_tokens=tokens)


def says(tokens: int | None, stop: StopReason = StopReason.END) -> Entry:
    return Entry(4, Role.ASSISTANT, (Text("hi"),), stop=stop, context_tokens=tokens)


def decided(*history: Entry, policy: Policy = POLICY, steps: int = 0) -> Action:
    return decide(Snapshot(TurnKind.MESSAGE, steps, history), policy)


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        # By what the model read last.
        ((USER, asks(699), RESULT), Generate()),
        ((USER, asks(700), RESULT), Compact()),
        ((USER, asks(900), RESULT, asks(699), RESULT), Generate()),
        ((USER, asks(None), RESULT), Generate()),
        ((asks(900), RESULT), Compact()),
        ((USER, asks(700), RESULT, says(None), USER), Compact()),
        # Never a turn that is finished; the next one, before it is answered.
        ((USER, says(900)), Finish()),
        ((USER, says(900), USER), Compact()),
        ((USER, says(900, StopReason.PAUSE)), Compact()),
        # Never what a summary has just replaced.
        ((SYSTEM, SUMMARY), Generate()),
        ((SYSTEM, SUMMARY, USER), Generate()),
        # Still over: judged by the first that the model read after the summary.
        ((SUMMARY, asks(700), RESULT), TooLong(700, 700, compacted=True)),
        ((SUMMARY, asks(800), RESULT, asks(900), RESULT), TooLong(800, 700, compacted=True)),
        ((SUMMARY, asks(None), RESULT, asks(900), RESULT), TooLong(900, 700, compacted=True)),
        ((SUMMARY, asks(699), RESULT, asks(900), RESULT), Compact()),
        ((SUMMARY, asks(900), RESULT, asks(699), RESULT), Generate()),
        ((SUMMARY, says(900)), Finish()),
        # A user who said something after the summary may have filled the room.
        ((SUMMARY, USER, asks(900), RESULT), Compact()),
        # By an estimate, where the provider has not counted yet.
        ((LONG,), TooLong(1_433, 1_000, compacted=False)),
        ((SYSTEM, LONG), TooLong(1_440, 1_000, compacted=False)),
        ((USER, LONG), Compact()),
        ((USER, says(10), LONG), Compact()),
        ((SUMMARY, LONG), TooLong(1_439, 1_000, compacted=True)),
        ((SUMMARY, USER, LONG), TooLong(1_445, 1_000, compacted=True)),
        ((SUMMARY, says(10), LONG), Compact()),
    ],
)
def test_when(history: tuple[Entry, ...], expected: Action) -> None:
    action = decided(*history)
    if isinstance(action, TooLong) and isinstance(expected, TooLong) and LONG in history:
        assert abs(action.tokens - expected.tokens) < 10
        expected = TooLong(action.tokens, expected.limit, expected.compacted)
    assert action == expected


@pytest.mark.parametrize("history", [(USER, asks(10_000), RESULT), (LONG,), (USER, LONG)])
def test_without_limits_nothing_is_judged(history: tuple[Entry, ...]) -> None:
    assert decided(*history, policy=Policy(max_steps=10)) == Generate()


def test_what_stands_beside_history_counts_until_the_provider_has_counted() -> None:
    full = Policy(10, compact_from=700, context_limit=1_000, overhead=2_000)
    assert decided(USER, policy=full) == TooLong(2_006, 1_000, compacted=False)
    assert decided(USER, asks(10), RESULT, policy=full) == Generate()


def test_calls_come_first_and_the_limit_of_steps_too() -> None:
    local = Call("c", "look_up", {}, CallKind.LOCAL, CallState.REQUESTED)
    open_call = Snapshot(TurnKind.MESSAGE, 0, (USER, asks(900)), (local,))
    assert decide(open_call, POLICY) == RunTools((local,))
    requested = Snapshot(TurnKind.COMPACTION, 0, (USER, asks(900)), (local,))
    assert decide(requested, POLICY) == RunTools((local,))
    assert decided(USER, asks(900), RESULT, steps=10) == StopAtLimit(10)


@pytest.mark.parametrize("history", [(USER, says(10)), (SUMMARY,), (LONG,), (SUMMARY, asks(900))])
def test_whoever_asks_for_a_summary_gets_one(history: tuple[Entry, ...]) -> None:
    assert decide(Snapshot(TurnKind.COMPACTION, 0, history), POLICY) == Compact()


@given(
    st.lists(st.sampled_from([USER, LONG]), max_size=3), st.sampled_from([(), (asks(900), RESULT)])
)
def test_a_summary_is_never_followed_by_another_at_once(
    joined: list[Entry], step: tuple[Entry, ...]
) -> None:
    assert not isinstance(decided(SUMMARY, *joined), Compact)
    assert not isinstance(decided(SUMMARY, *step), Compact)
