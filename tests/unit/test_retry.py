"""How long a failed model call waits for its next attempt."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from rejoinder.core.messages import Failure
from rejoinder.retry import MAX_ATTEMPTS, delay, may_retry, retry_state


def never() -> float:
    return 0.0


def test_the_wait_doubles_from_one_second_to_one_minute() -> None:
    waits = [delay(attempt, chance=never) for attempt in range(9)]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]


@given(
    attempt=st.integers(0, 10_000),
    asked=st.none() | st.floats(0, 86_400),
    luck=st.floats(0, 1, exclude_max=True),
)
def test_what_the_provider_asks_for_is_the_least(
    attempt: int, asked: float | None, luck: float
) -> None:
    least = max(delay(attempt, chance=never), asked or 0)
    wait = delay(attempt, asked, chance=lambda: luck)
    assert least <= wait <= least + min(least / 4, 15)


def test_chance_keeps_chats_apart_that_failed_together() -> None:
    assert len({delay(3, 30.0) for _ in range(20)}) > 1


def test_there_are_twenty_five_attempts() -> None:
    assert [n for n in range(40) if may_retry(n)] == list(range(MAX_ATTEMPTS - 1))
    assert MAX_ATTEMPTS == 25


def test_the_row_says_why_and_how_long() -> None:
    failure = Failure("overloaded", "It is busy.", status_code=529, retryable=True)
    state = retry_state(failure, 1.25)
    assert json.loads(json.dumps(state)) == {
        "delay_ms": 1250,
        "max_attempts": 25,
        "kind": "overloaded",
        "message": "It is busy.",
        "status_code": 529,
        "retryable": True,
    }
