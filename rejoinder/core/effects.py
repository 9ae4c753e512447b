"""What is to be made known once a transition has committed.

A transition returns its `Effects`; whoever committed it hands them to the dispatcher. Nothing here
is ever published inside a transaction, and losing any of it is harmless: the sweeper finds what
matters again in the rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from rejoinder.core.messages import TurnState
from rejoinder.core.parts import Json
from rejoinder.core.state import Status


class EventKind(StrEnum):
    """Kinds of events in a chat's stream."""

    MESSAGE = "message"
    STATUS = "status"
    QUEUE = "queue"
    RETRY = "retry"
    ACTION_REQUIRED = "action_required"
    COMPACTION = "compaction"
    ERROR = "error"
    HISTORY_RESET = "history_reset"
    PREVIEW_RESET = "preview_reset"
    TITLE = "title"
    BUDGET = "budget"
    LABELS = "labels"


class Cause(StrEnum):
    """Why a step is cancelled. The cause decides the next status."""

    SHUTDOWN = "shutdown"
    INTERRUPT = "interrupt"
    LEASE_LOST = "lease_lost"
    DEADLINE = "deadline"
    TIMEOUT = "timeout"  # of one tool call: it never ends a step


@dataclass(frozen=True)
class Event:
    """One event for the chat's readers."""

    kind: EventKind
    data: Mapping[str, Json]


@dataclass(frozen=True)
class Fence:
    """What a worker must still hold for its writes to count."""

    chat_id: UUID
    lease_id: UUID
    history_version: int


@dataclass(frozen=True)
class Dispatch:
    """Ring the doorbell: the chat is runnable, at once or in so many seconds.

    A delay, not a moment: whoever rings may have a clock that is wrong.
    """

    chat_id: UUID
    turn_id: UUID
    step_id: UUID
    """The id of the message, which is the Celery task's: it stands in the row, too."""
    delay_seconds: float = 0.0


@dataclass(frozen=True)
class Hint:
    """Tell the process that holds this lease to cancel its step."""

    worker_id: UUID
    chat_id: UUID
    lease_id: UUID
    cause: Cause


@dataclass(frozen=True)
class Send:
    """A call that another app's task is to answer."""

    chat_id: UUID
    call_id: str
    name: str
    external_id: str
    """The id of the other app's task."""
    arguments: Mapping[str, Json]
    again: bool
    """Whether it may be sent twice."""


@dataclass(frozen=True)
class TurnEnd:
    """A turn is over; its Celery result can be stored."""

    turn_id: UUID
    state: TurnState
    answer_id: int | None = None
    answer: str | None = None
    error: Mapping[str, Json] | None = None


@dataclass(frozen=True)
class Effects:
    """One committed transition of one chat, and what follows from it."""

    chat_id: UUID
    status: Status
    snapshot_version: int
    history_version: int
    queue_version: int
    changed: bool = True
    turn_id: UUID | None = None
    """The turn that the caller's message belongs to, or that is open now."""
    message_ids: tuple[int, ...] = ()
    queued_id: int | None = None
    fence: Fence | None = None
    """For the worker's next write, while it keeps the lease."""
    dispatch: Dispatch | None = None
    events: tuple[Event, ...] = ()
    hints: tuple[Hint, ...] = ()
    ended: tuple[TurnEnd, ...] = ()
    sends: tuple[Send, ...] = ()
    abandoned: tuple[str, ...] = ()
    """External ids of calls nobody waits for any more (another app's tasks, to be revoked)."""
    wake: UUID | None = None
    """The parent chat, to be told that this child has come to rest."""
