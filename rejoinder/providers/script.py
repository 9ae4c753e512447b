"""The data of a scripted model: what it says, step by step, as JSON.

A script is a list of steps, one per answer of the chat; or a list of lists, one per turn; or an
object, `{"steps": […]}` or `{"turns": [[…]]}`, with `"repeat": true` to play the last one for ever.
Which step comes next is read from the conversation alone, so that any worker can go on. A call for
a summary plays the step `"summary"`, or a default; how far the script had come is noted in it.
Builders for tests are in `rejoinder.testing`; `scripted.py` plays the steps.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rejoinder.core.compaction import asks_for_summary
from rejoinder.core.failures import FailureKind
from rejoinder.core.messages import Role
from rejoinder.core.model import PromptMessage, StopReason
from rejoinder.core.parts import text_of

CONTEXT_LIMIT = 200_000


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Call(_Data):
    """A tool call of the scripted model. Texts among the arguments are templates, too."""

    name: str
    arguments: Mapping[str, Any] = Field(default_factory=dict)
    id: str | None = None


class Fail(_Data):
    """A failed attempt (or several) at a step, before it succeeds."""

    kind: FailureKind | Literal["truncated", "bug"] = FailureKind.OVERLOADED
    """A kind of failure; also "truncated" (the stream just ends) and "bug" (a RuntimeError)."""
    times: int | None = Field(default=1, ge=1)
    """How many attempts fail; None: all."""
    after: int = Field(default=0, ge=0)
    """How many chunks come out first."""
    status: int | None = None
    retryable: bool | None = None
    retry_after: float | None = None
    message: str | None = None


class Tokens(_Data):
    """What the step is said to have cost."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None


class Step(_Data):
    """One answer: thinking, then text, then calls."""

    thinking: str = ""
    text: str = ""
    """A template: {user}, {result}, {results}, {result:0}, {result:weather.celsius}."""
    calls: tuple[Call, ...] = ()
    fail: tuple[Fail, ...] = ()
    hang_after: int | None = Field(default=None, ge=0)
    """Fall silent for ever after so many chunks."""
    delay: float = Field(default=0, ge=0)
    """Seconds before the first chunk."""
    pace: float = Field(default=0, ge=0)
    """Seconds between chunks."""
    chunk: int | None = Field(default=None, ge=1)
    """Characters of a chunk; by default a chunk is a word."""
    stop: StopReason | None = None
    """`max_tokens` cuts the last call off, if there is one."""
    usage: Tokens | None = None

    @property
    def only_fails(self) -> bool:
        """Whether there is nothing to say once the failures are over."""
        return bool(self.fail) and self.model_fields_set <= {"fail"}

    def failure(self, attempt: int) -> Fail | None:
        """How this attempt fails, if it does."""
        for fail in self.fail:
            if fail.times is None or attempt < fail.times:
                return fail
            attempt -= fail.times
        return self.fail[-1] if self.only_fails else None


class Script(_Data):
    """All steps of a chat."""

    steps: tuple[Step, ...] = ()
    turns: tuple[Annotated[tuple[Step, ...], Field(min_length=1)], ...] = ()
    repeat: bool = False
    summary: Step = Step(text="A scripted summary.")
    """What it says when it is asked for a summary of the conversation."""
    context_limit: int = Field(default=CONTEXT_LIMIT, ge=1)
    titles: bool = False
    """Whether it may be asked for a chat's title."""

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: Any) -> Any:  # whatever was given
        if not isinstance(data, list | tuple):
            return data
        if any(isinstance(item, list | tuple) for item in data):
            return {"turns": [i if isinstance(i, list | tuple) else [i] for i in data]}
        return {"steps": data}

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if bool(self.steps) == bool(self.turns):
            raise ValueError("give steps, or turns, and at least one")
        return self

    def choose(self, messages: Sequence[PromptMessage]) -> tuple[Step | None, str]:
        """The step that this conversation has come to (None: the script is over), and where.

        Steps are counted by the answers in the conversation. Turns are counted by its user
        messages, and a turn's steps by the answers since the last of them, so that a turn that was
        stopped before it said anything is over all the same.
        """
        if asks_for_summary(messages):
            text = f"{self.summary.text}\n\n{Place.of(messages[:-1])}" if self.summary.text else ""
            return self.summary.model_copy(update={"text": text}), "summary"
        place = Place.of(messages)
        if self.steps:
            return _at(self.steps, place.answers, repeat=self.repeat)
        turn = max(0, place.messages - 1)
        last = len(self.turns) - 1
        where = f"turn {turn + 1}"
        if turn > last and not self.repeat:
            return None, where
        step, at = _at(self.turns[min(turn, last)], place.since, repeat=False)
        return step, f"{where}, {at}"


@dataclass(frozen=True)
class Place:
    """How far a conversation has come."""

    answers: int = 0
    messages: int = 0
    """Of the user."""
    since: int = 0
    """Answers since the last of them."""

    @classmethod
    def of(cls, messages: Sequence[PromptMessage]) -> Self:
        """Count; a summary of ours says what stood in its place."""
        place = cls()
        for message in messages:
            if message.role is Role.ASSISTANT:
                place = cls(place.answers + 1, place.messages, place.since + 1)
            elif message.role is Role.USER:
                noted = _NOTED.search(text_of(message.parts))
                place = (
                    cls(*map(int, noted.groups()))
                    if noted
                    else cls(place.answers, place.messages + 1)
                )
        return place

    def __str__(self) -> str:
        """Return the note in a summary."""
        return f"[{self.answers} answers, {self.messages} messages, {self.since} since the last]"


_NOTED = re.compile(r"\[(\d+) answers, (\d+) messages, (\d+) since the last\]")


def _at(steps: Sequence[Step], index: int, *, repeat: bool) -> tuple[Step | None, str]:
    where = f"step {index + 1}"
    folded = _fold(steps)
    if index >= len(folded):
        return (folded[-1] if repeat else None), where
    return folded[index], where


def _fold(steps: Sequence[Step]) -> list[Step]:
    """Failures that stand alone belong to the step that they precede: it fails, then succeeds."""
    folded: list[Step] = []
    failures: tuple[Fail, ...] = ()
    for step in steps:
        failures += step.fail
        if not step.only_fails:
            folded.append(step.model_copy(update={"fail": failures}))
            failures = ()
    if failures:
        folded.append(Step(fail=failures))
    return folded


_WORDS = re.compile(r"\s*\S+|\s+$")


def chunks(text: str, size: int | None) -> list[str]:
    """A text as it streams: by words, or by so many characters."""
    if size is not None:
        return [text[at : at + size] for at in range(0, len(text), size)]
    return _WORDS.findall(text)
