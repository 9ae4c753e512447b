"""The examples of docs/waiting.md run as they stand, but for the addresses."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.bank import Bank

PAGE = Path(__file__).parents[2] / "docs" / "waiting.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def run(bank: Bank, block: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "page"}
    address = bank.house.fleet.env["REJOINDER_REDIS_URL"]
    exec(block.replace("redis://…", address), names)  # noqa: S102  # our own words
    return names


def test_every_example_runs_and_says_what_the_page_says(
    bank: Bank, capsys: pytest.CaptureFixture[str]
) -> None:
    said = []
    for block in BLOCKS:
        names = run(bank, block)
        if "client" in names:
            names["client"].close()
        said.append(capsys.readouterr().out)
    client_side, tools, approvals, app, tool, chat = said
    assert client_side == "You are in Bonn.\n"
    assert approvals == (
        "calculate {'expression': '6 * 7'}\n"
        "It is 42\n\n[It was allowed with the words: just this once]\n"
    )
    assert chat == "Done: 700\n"
    assert (tools, app, tool) == ("", "", "")
