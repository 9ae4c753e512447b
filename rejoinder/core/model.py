"""What a model is asked and what it answers, without any provider's words.

A `Provider` (see `rejoinder/providers`) turns a `ModelRequest` into a stream of batches of `Delta`s
that ends with one `Reply`. Nothing here knows rows, tasks or HTTP.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, TypeAlias

from rejoinder.core.messages import Role, Usage
from rejoinder.core.parts import Json, Part


class StopReason(StrEnum):
    """Why the model stopped."""

    END = "end"
    TOOL_USE = "tool_use"
    MAX_TOKENS = "max_tokens"
    PAUSE = "pause"  # it wants to go on: send its answer back and ask again
    REFUSAL = "refusal"
    STOP_SEQUENCE = "stop_sequence"
    CONTEXT_LENGTH = "context_length"  # the model's context is full: the answer is cut off


@dataclass(frozen=True)
class Profile:
    """What a model can do, as far as we must know."""

    context_limit: int
    max_output_tokens: int
    caching: bool = False
    thinking: bool = False
    titles: bool = True
    """Whether it may be asked to name chats, unless another model does."""


@dataclass(frozen=True)
class Options:
    """How to ask. What is None is the provider's default."""

    max_tokens: int | None = None
    temperature: float | None = None
    thinking: Json = None  # a budget in tokens, "adaptive", False, or the provider's own object
    effort: str | None = None
    extra: Mapping[str, Json] = field(default_factory=dict)  # sent to the provider as it is


@dataclass(frozen=True)
class ToolSpec:
    """A tool as the model sees it."""

    name: str
    description: str
    schema: Mapping[str, Json]


@dataclass(frozen=True)
class PromptMessage:
    """One message of the prompt. Results of tools are in a TOOL message."""

    role: Role
    parts: tuple[Part, ...]
    cached: bool = False
    """The provider may keep everything up to and including this one."""
    model: str | None = None
    """Who said it, as `provider:model`: thinking goes back to nobody else."""
    stop: str | None = None
    """Why it ended, for an assistant's message: after `pause` it may be the last one."""


@dataclass(frozen=True)
class ModelRequest:
    """One call of the model."""

    model: str  # without the provider's prefix
    messages: tuple[PromptMessage, ...]  # system messages first
    tools: tuple[ToolSpec, ...] = ()
    options: Options = field(default_factory=Options)
    attempt: int = 0
    """How often this very call has failed before."""
    tool_use: bool = True
    """False: the tools are there for the calls in history to refer to, and must not be used."""


@dataclass(frozen=True)
class TextDelta:
    """More words. `index` counts the parts of the answer."""

    index: int
    text: str
    count: int = 1
    """How many deltas of the provider it stands for."""
    kind: Literal["text"] = "text"


@dataclass(frozen=True)
class ReasoningDelta:
    """More thinking."""

    index: int
    text: str
    count: int = 1
    kind: Literal["reasoning"] = "reasoning"


@dataclass(frozen=True)
class CallDelta:
    """A tool call begins (with its name), or more of its arguments, as JSON text."""

    index: int
    call_id: str
    name: str
    arguments: str = ""
    count: int = 1
    kind: Literal["tool_call"] = "tool_call"


@dataclass(frozen=True)
class PartDone:
    """A part of the answer is complete, as it will be stored."""

    index: int
    part: Part
    kind: Literal["part"] = "part"


@dataclass(frozen=True)
class UsageSoFar:
    """What the call has taken as far as the provider has told: counts if the answer breaks off."""

    usage: Usage
    kind: Literal["usage"] = "usage"


@dataclass(frozen=True)
class Reply:
    """The complete answer: the last thing a stream yields, and the only proof that it is one."""

    parts: tuple[Part, ...]
    stop: StopReason
    usage: Usage
    model: str
    request_id: str | None = None
    cut: tuple[Part, ...] = ()
    """Calls that the output limit cut off: shown, but neither stored nor run."""
    extra: Mapping[str, Json] = field(default_factory=dict)
    """What else the provider said of its answer, in its own words."""
    kind: Literal["reply"] = "reply"


Delta: TypeAlias = TextDelta | ReasoningDelta | CallDelta | PartDone
StreamItem: TypeAlias = Delta | UsageSoFar | Reply
Batch: TypeAlias = Sequence[StreamItem]
"""What came together. An empty one says that the provider is still there: for the silence limit."""
