"""Fixtures of the integration tier only."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def data() -> Iterator[Path]:
    """A data folder yet to be made, in a place that any user can reach (`tmp_path` is private)."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        yield Path(folder) / "data"
