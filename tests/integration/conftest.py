"""Fixtures of the integration tier only."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.chats import World

if TYPE_CHECKING:
    from collections.abc import Iterator


BOTH_STORES = (
    "approvals",
    "backlog",
    "budgets",
    "calls",
    "late_answers",
    "matrix",
    "sending",
    "steering",
    "turns",
)
"""Tests of the machine: the lease holder writes by compare-and-set, and then under the lock."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    machine = metafunc.module.__name__.rpartition(".test_")[2] in BOTH_STORES
    if machine and "world" in metafunc.fixturenames:
        metafunc.fixturenames.append("store")
        metafunc.parametrize("store", ["compare-and-set", "locked"], indirect=True)


@pytest.fixture
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the worlds of a test write one way or the other."""
    monkeypatch.setattr(World, "compares_and_sets", request.param == "compare-and-set")


@pytest.fixture
def data() -> Iterator[Path]:
    """A data folder yet to be made, in a place that any user can reach (`tmp_path` is private)."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        yield Path(folder) / "data"
