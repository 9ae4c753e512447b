"""The examples of docs/tools.md run, in order, as one program; and so do the example tools."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rejoinder.testing import run_tool
from rejoinder.tools import Registry, examples

PAGE = Path(__file__).parent.parent.parent / "docs" / "tools.md"


def test_the_examples_of_the_page_run() -> None:
    text = PAGE.read_text(encoding="utf-8")
    blocks = list(re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    assert len(blocks) >= 7
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks:
        line = text[: block.start(1)].count("\n")
        code = compile("\n" * line + block[1], str(PAGE), "exec")
        exec(code, names)  # noqa: S102  # our own page


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("(2 + 3) * 4", "20"),
        ("-7 // 2", "-4"),
        ("2 ** 10 % 1000", "24"),
        ("1 / 4", "0.25"),
        ("2 ** -1", "0.5"),
    ],
)
def test_calculate(expression: str, value: str) -> None:
    assert run_tool(examples.calculate, expression=expression).content == value


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "1 / 0",
        "2 ** 100000",
        "9" * 400,
        "10 ** 999 * 10 ** 999",
        "(-8) ** 0.5",
        "1e308 * 10",
        "__import__('os')",
        "().__class__",
        "True",
        "'a' * 9",
        "1 if 2 else 3",
        "(" * 3000 + "1" + ")" * 3000,
        "-" * 100_000 + "1",
        "1\x00",
    ],
)
def test_calculate_refuses_what_is_no_arithmetic(expression: str) -> None:
    result = run_tool(examples.calculate, expression=expression)
    assert result.is_error
    assert len(str(result.content)) < 1000


def test_the_examples_are_deterministic_where_they_say_so() -> None:
    first, second = (run_tool(examples.weather, city=city).content for city in ("Bonn", "bonn "))
    assert str(first).casefold() == str(second).casefold()
    rolls = {str(run_tool(examples.roll_dice, sides=20, seed=7).content) for _ in range(5)}
    assert len(rolls) == 1
    assert run_tool(examples.roll_dice, sides=1).is_error
    assert str(run_tool(examples.current_time).content).endswith("+00:00")
    assert run_tool(examples.current_time, timezone="../etc/passwd").is_error
    assert run_tool(examples.slow_lookup, topic="tea", seconds=0).content == (
        "tea: there are 3 characters in it."
    )


def test_the_examples_load() -> None:
    registry = Registry()
    registry.load_modules("rejoinder.tools.examples")
    assert registry.names == ("calculate", "current_time", "roll_dice", "slow_lookup", "weather")
