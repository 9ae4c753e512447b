"""A scripted model that is asked for a summary, and how the script goes on behind it."""

from typing import Any

import pytest

from rejoinder.core.compaction import instruction
from rejoinder.core.model import PromptMessage
from rejoinder.core.prompt import assemble
from tests.scripted import answer, failure, reply, request, said, user

STEPS = {"steps": [{"text": str(n)} for n in range(1, 7)]}
TURNS = {"turns": [[{"text": f"{turn}{step}"} for step in "ab"] for turn in range(1, 5)]}
ASK = assemble([instruction()], "scripted")[-1]


def go_on(script: Any, *before: PromptMessage) -> PromptMessage:
    """What stands in place of a conversation."""
    return user(f"Before.\n\n{said(request(script, *before, ASK))}\n\nAnd after.")


def test_a_summary_is_scripted_or_the_default() -> None:
    assert said(request(STEPS, user("a"), ASK)).startswith("A scripted summary.")
    ours = {**STEPS, "summary": {"text": "Ours: {user}", "usage": {"input_tokens": 5}}}
    answered = reply(request(ours, user("a"), ASK))
    assert answered.usage.input_tokens == 5
    assert said(request(ours, user("a"), ASK)).startswith("Ours: ")


def test_a_summary_can_fail_and_can_be_empty() -> None:
    broken = {**STEPS, "summary": {"text": "Ours.", "fail": [{"kind": "overloaded"}]}}
    assert failure(request(broken, user("a"), ASK)).failure.kind == "overloaded"
    assert said(request(broken, user("a"), ASK, attempt=1)).startswith("Ours.")
    assert said(request({**STEPS, "summary": {}}, user("a"), ASK)) == ""


def test_steps_go_on_behind_a_summary() -> None:
    summary = go_on(STEPS, user("a"), answer(), user("b"), answer())
    assert said(request(STEPS, summary)) == "3"
    assert said(request(STEPS, summary, answer(), user("c"))) == "4"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([user("a")], [], "1a"),
        ([user("a"), answer()], [], "1b"),
        ([user("a"), answer(), answer()], [user("b")], "2a"),
        ([user("a"), answer(), answer(), user("b"), answer()], [], "2b"),
        ([user("a"), answer(), user("b")], [answer()], "2b"),
        ([user("a"), answer(), user("b")], [answer(), user("c")], "3a"),
    ],
)
def test_turns_go_on_behind_a_summary(
    before: list[PromptMessage], after: list[PromptMessage], expected: str
) -> None:
    assert said(request(TURNS, go_on(TURNS, *before), *after)) == expected


def test_and_behind_a_summary_of_a_summary() -> None:
    first = go_on(TURNS, user("a"), answer(), answer(), user("b"))
    second = go_on(TURNS, first, answer())
    assert said(request(TURNS, second)) == "2b"
    assert said(request(TURNS, second, answer(), user("c"))) == "3a"
