"""What is kept of values that never change: by identity, and no longer than they live."""

import gc
from itertools import count

from rejoinder.core.decide import Entry
from rejoinder.core.kept import Kept
from rejoinder.core.messages import Role
from rejoinder.core.model import PromptMessage
from rejoinder.core.parts import Part, Text, ToolCall, ToolResult
from rejoinder.core.prompt import _kept_for, _Reader, assemble
from rejoinder.providers.anthropic_turns import conversation

MODEL = "anthropic:claude-a"


def entry(number: int, role: Role, *parts: Part) -> Entry:
    return Entry(number, role, parts, model=MODEL if role is Role.ASSISTANT else None)


def history() -> tuple[Entry, ...]:
    return (
        entry(1, Role.USER, Text("Hello.")),
        entry(2, Role.ASSISTANT, Text("One moment."), ToolCall("a", "add", {"x": 1})),
        entry(3, Role.TOOL, ToolResult("a", "2")),
        entry(4, Role.ASSISTANT, Text("It is 2.")),
        entry(5, Role.USER, Text("Thanks.")),
    )


def prompt(said: tuple[Entry, ...], model: str = "claude-a") -> tuple[PromptMessage, ...]:
    return assemble(said, "anthropic", model=model)


def test_it_is_found_by_identity_and_goes_with_its_object() -> None:
    kept: Kept[int] = Kept()
    numbers = count()
    first, equal = Text("a"), Text("a")
    assert kept.all([first], lambda _: next(numbers)) == [0]
    assert kept.all([equal, first, first], lambda _: next(numbers)) == [1, 0, 0]
    del first
    gc.collect()
    assert len(kept) == 1


def test_a_longer_history_has_the_same_messages_in_its_prompt() -> None:
    before = history()
    first = prompt(before)
    then = prompt(
        (*before, entry(6, Role.ASSISTANT, Text("Well.")), entry(7, Role.USER, Text("?")))
    )
    assert all(a is b for a, b in zip(first, then, strict=False))
    assert [said.sent for said in conversation(first)] == [
        said.sent for said in conversation(then)[:5]
    ]


def test_another_reader_gets_a_prompt_of_its_own() -> None:
    before = history()
    ours = prompt(before)
    assert assemble(before, "other")[1] is not ours[1]
    assert prompt(before) == ours


def test_messages_are_forgotten_with_their_history() -> None:
    gc.collect()
    healed = _kept_for(_Reader("anthropic", "claude-a"))
    before = len(healed)
    said = history()
    prompt(said)
    assert len(healed) == before + 5
    del said
    gc.collect()
    assert len(healed) == before
