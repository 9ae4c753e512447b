"""The examples of docs/conversations.md run as they stand, one after the other."""

import re
from pathlib import Path

import pytest

from tests.scenarios.conftest import Stage

PAGE = Path(__file__).parents[2] / "docs" / "conversations.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_examples_run(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REJOINDER_REDIS_URL", stage.redis_url)
    names: dict[str, object] = {}
    for block in BLOCKS:
        exec(block, names)  # noqa: S102  # our own words
    said = capsys.readouterr().out.splitlines()
    queued, *rest = said
    assert re.fullmatch(r"\[\(\d+, None, False\), \(\d+, 'scripted:echo', False\)\]", queued), (
        queued
    )
    assert rest == [
        "cancelled",
        "You said: In French.",
        "True",
        "interrupted",
        "You said: A short one.",
        "finished",
        "['Stories'] None",
        "The chat is archived: unarchive it first",
        "Tell me a story.",
        "You said: And now?",
        "True",
    ]
