"""The examples in the README run as they stand, but for the addresses and the model."""

import re
from pathlib import Path

import pytest

from tests.scenarios.conftest import Stage

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def example(beginning: str, stage: Stage) -> str:
    (block,) = [block for block in BLOCKS if block.startswith(beginning)]
    block = block.replace("redis://…", stage.redis_url)
    return re.sub(r'"anthropic:[^"]*"', '"scripted:echo"', block)


def test_the_example_for_any_celery_app_runs(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    exec(example("from celery", stage), {})  # noqa: S102  # our own words
    assert capsys.readouterr().out == "finished You said: Where is order 17?\n"


def test_the_example_for_the_client_runs(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    exec(example("from rejoinder import Client", stage), {})  # noqa: S102
    assert "You said: Where is order 17?" in capsys.readouterr().out


def test_the_example_of_a_tool_is_a_tool() -> None:
    (block,) = [block for block in BLOCKS if "@tool" in block]
    names: dict[str, object] = {"__name__": "example"}
    exec(block, names)  # noqa: S102
    assert names["order_status"].name == "order_status"  # type: ignore[attr-defined]
