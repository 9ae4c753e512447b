"""The gaps between repeated dispatches grow, and not for ever."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest

from rejoinder.core.limits import REDISPATCH_FIRST, REDISPATCH_MOST, redispatch_gap


def test_the_gaps_double_up_to_the_longest() -> None:
    gaps = [redispatch_gap(dispatches) for dispatches in range(1, 12)]
    assert [gap.total_seconds() for gap in gaps[:6]] == [10, 20, 40, 80, 160, 300]
    assert all(earlier <= later for earlier, later in pairwise(gaps))
    assert gaps[-1] == REDISPATCH_MOST == timedelta(minutes=5)


@pytest.mark.parametrize("dispatches", [10**3, 2**31, 2**63])
def test_the_longest_gap_holds_however_often_it_was_tried(dispatches: int) -> None:
    assert redispatch_gap(dispatches) == REDISPATCH_MOST


@pytest.mark.parametrize("dispatches", [-1, 0, 1])
def test_the_first_gap_is_the_shortest(dispatches: int) -> None:
    assert redispatch_gap(dispatches) == REDISPATCH_FIRST == timedelta(seconds=10)
