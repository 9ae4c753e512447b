"""Values that go into history: messages, their cost, tool calls and how to deliver them.

Nothing here knows rows or transactions; `models/tables.py` stores these, `models/machine` writes
them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from uuid import UUID

from rejoinder.core.limits import MOST_TOKENS
from rejoinder.core.parts import Json, Part


class Role(StrEnum):
    """Who speaks."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class Visibility(StrEnum):
    """Who sees a message."""

    USER = "user"
    MODEL = "model"
    BOTH = "both"


class WhenBusy(StrEnum):
    """What a message does to a chat that is busy."""

    QUEUE = "queue"  # it waits for its own turn
    STEER = "steer"  # it joins the turn that runs, at the next step
    INTERRUPT = "interrupt"  # the turn is stopped for it
    REJECT = "reject"


class Delivery(StrEnum):
    """What may happen to a call whose worker died after starting it."""

    ONCE = "once"  # never run again; the model is told that the outcome is unknown
    IDEMPOTENT = "idempotent"  # run again


class CallKind(StrEnum):
    """Who answers a call."""

    LOCAL = "local"  # a function in the worker
    CLIENT = "client"  # the app or a person, through submit_results
    EXTERNAL = "external"  # another app's task, through wake
    CHILDREN = "children"  # child chats: the worker looks at them whenever the chat is woken


class Approval(StrEnum):
    """Whether a person has to allow a call before it runs."""

    WANTED = "wanted"
    GRANTED = "granted"


class ActionKind(StrEnum):
    """What a chat that requires action waits for."""

    CALLS = "calls"  # results or approvals
    BUDGET = "budget"  # more to spend


class TitleSource(StrEnum):
    """Who made a chat's title; nobody overwrites a user's."""

    WORDS = "words"  # the first ones of the first message
    MODEL = "model"
    USER = "user"


class CallState(StrEnum):
    """How far a call has come."""

    REQUESTED = "requested"
    STARTED = "started"
    FINISHED = "finished"
    UNKNOWN = "unknown"  # it had started; nobody knows how it ended


ANSWERED = frozenset({CallState.FINISHED, CallState.UNKNOWN})


class TurnState(StrEnum):
    """How far a turn has come. A turn's id is also a Celery result id."""

    QUEUED = "queued"
    OPEN = "open"
    JOINED = "joined"  # its message went into the turn that was open: they end together
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    CANCELLED = "cancelled"  # its message was deleted from the queue, or edited away


class TurnKind(StrEnum):
    """What opened a turn."""

    MESSAGE = "message"
    RETRY = "retry"
    COMPACTION = "compaction"


@dataclass(frozen=True)
class Usage:
    """Tokens of one model call; `None` is unknown, which is not zero.

    What a provider says need not be true, but it must be stored: no count is below zero or beyond
    `MOST_TOKENS`, and what is no whole number is unknown.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None

    def __post_init__(self) -> None:
        """Believe no count that cannot be one."""
        for name, count in [*vars(self).items()]:
            if count is not None and (type(count) is not int or not 0 <= count <= MOST_TOKENS):
                whole = min(max(count, 0), MOST_TOKENS) if type(count) is int else None
                object.__setattr__(self, name, whole)

    @property
    def prompt_tokens(self) -> int | None:
        """What the model read, from the cache or not."""
        read = (self.input_tokens, self.cache_read_tokens, self.cache_write_tokens)
        known = [count for count in read if count is not None]
        return min(sum(known), MOST_TOKENS) if known else None


@dataclass(frozen=True)
class Used:
    """What model calls have taken, summed up."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    cost_micros: int = 0
    unpriced_calls: int = 0
    """Calls whose cost nobody knows: the cost is at least what it says."""
    runtime_ms: int = 0

    def __add__(self, other: "Used") -> "Used":
        """Both together."""
        return Used(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Used)))

    @property
    def tokens(self) -> int:
        """What counts against a budget: everything that went in and came out."""
        return (
            self.input_tokens
            + self.output_tokens
            + self.cache_read_tokens
            + self.cache_write_tokens
        )


@dataclass(frozen=True)
class Budget:
    """What a tree of chats may use; None is no limit."""

    tokens: int | None = None
    micros: int | None = None
    """Millionths of a dollar."""


@dataclass(frozen=True)
class CallPlan:
    """How one tool call is to be answered."""

    kind: CallKind = CallKind.LOCAL
    delivery: Delivery = Delivery.ONCE
    external_id: str | None = None
    approval: bool = False
    """Whether a person has to allow it first."""
    seconds: float | None = None
    """How long to wait for an answer from outside; None: as long as the chat says."""
    default: "Default | None" = None
    """What holds if none comes; None: an error that says so."""
    waits_for: tuple[UUID, ...] = ()
    """The child chats whose rest answers it."""


@dataclass(frozen=True)
class Default:
    """The answer of somebody who does not answer: an approval, or a result."""

    approve: bool | None = None
    content: Json = None
    is_error: bool = False
    seconds: float | None = None
    """For an approval: how long to wait for it; None: as long as the chat says."""


@dataclass(frozen=True)
class NewMessage:
    """A message on its way into history."""

    role: Role
    parts: tuple[Part, ...]
    visibility: Visibility = Visibility.BOTH
    compressed: bool = False
    model: str | None = None
    usage: Usage = field(default_factory=Usage)
    context_limit: int | None = None
    runtime_ms: int | None = None
    stop_reason: str | None = None
    request_id: str | None = None
    cost_micros: int | None = None
    """Millionths of a dollar; None is unknown, which is not zero."""
    counted: bool = False
    """Whether what it took is in the chat's sums already."""


@dataclass(frozen=True)
class Compaction:
    """One boundary in history: what the model reads instead, and what people see of it."""

    summary: NewMessage
    marker: NewMessage
    told: Mapping[str, Json] = field(default_factory=dict)
    """What readers hear of it besides, once it is stored."""


@dataclass(frozen=True)
class Failure:
    """Why a chat stopped: a kind for programs, a sentence for people, detail for experts."""

    kind: str
    message: str
    detail: str | None = None
    provider: str | None = None
    status_code: int | None = None
    request_id: str | None = None
    retryable: bool = False

    def to_json(self) -> Mapping[str, Json]:
        """The stored form: what is known, nothing else."""
        return {k: v for k, v in vars(self).items() if v is not None}
