"""Values that go into history: messages, their cost, tool calls and how to deliver them.

Nothing here knows rows or transactions; `models/tables.py` stores these, `models/machine` writes
them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

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

    QUEUE = "queue"
    INTERRUPT = "interrupt"
    REJECT = "reject"


class Delivery(StrEnum):
    """What may happen to a call whose worker died after starting it."""

    ONCE = "once"  # never run again; the model is told that the outcome is unknown
    IDEMPOTENT = "idempotent"  # run again


class CallKind(StrEnum):
    """Who answers a call."""

    LOCAL = "local"  # a function in the worker
    CLIENT = "client"  # the app or a person, through submit_results
    EXTERNAL = "external"  # a child chat or another app's task, through wake


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
    """Tokens of one model call; `None` is unknown, which is not zero."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None


@dataclass(frozen=True)
class CallPlan:
    """How one tool call is to be answered."""

    kind: CallKind = CallKind.LOCAL
    delivery: Delivery = Delivery.ONCE
    external_id: str | None = None


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


@dataclass(frozen=True)
class Compaction:
    """One boundary in history: what the model reads instead, and what people see of it."""

    summary: NewMessage
    marker: NewMessage


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
