"""Scenarios that share a fleet are handed out together."""

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.stages import stage_of

TURNS = "tests/scenarios/test_turns.py"
ISOLATION = "tests/integration/test_isolation.py::test_a"


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        (f"{TURNS}::test_a[threads]", f"{TURNS}::test_b[threads-x::y]", True),
        (f"{TURNS}::test_a[threads]", f"{TURNS}::test_a[prefork]", False),
        (f"{TURNS}::test_a", f"{TURNS}::test_b", True),
        (f"{TURNS}::test_a[threads]", "tests/scenarios/test_up.py::test_a[threads]", False),
        (f"{ISOLATION}[first]", f"{ISOLATION}[second]", True),
        ("tests/unit/test_a.py::test_a[threads]", "tests/unit/test_a.py::test_b[threads]", False),
    ],
)
def test_the_file_and_the_pool_make_a_group(one: str, other: str, *, together: bool) -> None:
    assert (stage_of(one) == stage_of(other)) is together


def test_xdist_asks_for_the_group_of_a_test() -> None:
    assert "_split_scope" in vars(LoadScopeScheduling), "or every test would go its own way"
