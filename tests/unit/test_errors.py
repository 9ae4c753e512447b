"""Refusals say what to do, and survive the journey between processes."""

from __future__ import annotations

import copy
import pickle

import pytest

from rejoinder.core.errors import Refused, Rejected, Stale, StopRequested

KINDS = [Refused, Rejected, Stale, StopRequested]


@pytest.mark.parametrize("kind", KINDS)
def test_a_refusal_names_the_reason_and_the_advice(kind: type[Refused]) -> None:
    refusal = kind("The door is shut", "ring the bell")
    assert (refusal.reason, refusal.advice) == ("The door is shut", "ring the bell")
    assert str(refusal) == "The door is shut: ring the bell"
    assert isinstance(refusal, Refused)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_refusal_survives_pickling(kind: type[Refused], protocol: int) -> None:
    refusal = kind("The door is shut", "ring the bell")
    for twin in (pickle.loads(pickle.dumps(refusal, protocol)), copy.copy(refusal)):  # noqa: S301  # our own
        assert type(twin) is kind
        assert (twin.reason, twin.advice, str(twin)) == (
            refusal.reason,
            refusal.advice,
            str(refusal),
        )


def test_a_caller_can_tell_the_refusals_apart() -> None:
    assert not issubclass(Rejected, Stale | StopRequested)
    assert not issubclass(Stale, Rejected | StopRequested)
    assert not issubclass(StopRequested, Rejected | Stale)
