"""What a step should do next, decided from what stands in history and from nothing else.

`decide` is pure and total: every snapshot that the machine can produce has exactly one answer. So
it does not matter which worker asks, how often, or what happened to the one before.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias
from uuid import UUID

from rejoinder.core.messages import ANSWERED, Approval, CallKind, CallState, Role, TurnKind
from rejoinder.core.model import StopReason
from rejoinder.core.parts import Json, Part, open_calls


@dataclass(frozen=True)
class Entry:
    """One message of history, as the model is shown it."""

    id: int
    role: Role
    parts: tuple[Part, ...]
    model: str | None = None
    stop: str | None = None
    context_tokens: int | None = None
    compressed: bool = False


@dataclass(frozen=True)
class Call:
    """A tool call that history waits for."""

    call_id: str
    name: str
    arguments: Json
    kind: CallKind
    state: CallState
    external_id: str | None = None
    approval: Approval | None = None
    waits_for: tuple[UUID, ...] = ()
    overdue: bool = False
    """Whether its time is up."""

    @property
    def answered(self) -> bool:
        """Whether it has its result, though it is not in history yet."""
        return self.state in ANSWERED

    @property
    def asks(self) -> bool:
        """Whether somebody outside has to act first."""
        return self.kind is CallKind.CLIENT or self.approval is Approval.WANTED

    @property
    def startable(self) -> bool:
        """Whether the worker has something to do for it now."""
        if self.asks:
            return False
        return self.kind is CallKind.LOCAL or (
            self.kind is CallKind.EXTERNAL and self.state is CallState.REQUESTED
        )


@dataclass(frozen=True)
class Snapshot:
    """What a step knows of its chat."""

    turn_kind: TurnKind
    steps: int
    history: tuple[Entry, ...]
    calls: tuple[Call, ...] = ()
    attempt: int = 0


@dataclass(frozen=True)
class Policy:
    """Limits that the decision depends on."""

    max_steps: int = 1200


@dataclass(frozen=True)
class RunTools:
    """Run these calls, then look again."""

    calls: tuple[Call, ...]
    kind: Literal["run_tools"] = "run_tools"


@dataclass(frozen=True)
class Park:
    """Wait for answers from outside: from a client first, then from tasks and children."""

    waits_for: CallKind
    kind: Literal["park"] = "park"


@dataclass(frozen=True)
class Compact:
    """Summarise what there is."""

    kind: Literal["compact"] = "compact"


@dataclass(frozen=True)
class Finish:
    """The answer is complete."""

    kind: Literal["finish"] = "finish"


@dataclass(frozen=True)
class StopAtLimit:
    """So many steps that something must be wrong: end the turn, and say so."""

    steps: int
    kind: Literal["stop_at_limit"] = "stop_at_limit"


@dataclass(frozen=True)
class Generate:
    """Ask the model."""

    kind: Literal["generate"] = "generate"


Action: TypeAlias = RunTools | Park | Compact | Finish | StopAtLimit | Generate


def decide(snapshot: Snapshot, policy: Policy) -> Action:
    """Choose the next action; the first rule that applies."""
    unanswered = tuple(call for call in snapshot.calls if not call.answered)
    if unanswered:
        return _for_calls(unanswered)
    if snapshot.turn_kind is TurnKind.COMPACTION:
        return Compact()
    if _is_complete(snapshot.history):
        return Finish()
    if snapshot.steps >= policy.max_steps:
        return StopAtLimit(snapshot.steps)
    return Generate()


def _for_calls(unanswered: tuple[Call, ...]) -> Action:
    """Do what is ours to do; then people are asked, then children and other apps' tasks."""
    if ours := tuple(call for call in unanswered if call.startable):
        return RunTools(ours)
    asks = any(call.asks for call in unanswered)
    return Park(CallKind.CLIENT if asks else CallKind.EXTERNAL)


def _is_complete(history: tuple[Entry, ...]) -> bool:
    """Whether the last word is the assistant's, and it had finished speaking."""
    if not history:
        return False
    last = history[-1]
    return (
        last.role is Role.ASSISTANT and last.stop != StopReason.PAUSE and not open_calls(last.parts)
    )
