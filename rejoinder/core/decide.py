"""What a step should do next, decided from what stands in history and from nothing else.

`decide` is pure and total: every snapshot that the machine can produce has exactly one answer. So
it does not matter which worker asks, how often, or what happened to the one before.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias
from uuid import UUID

from rejoinder.core.estimate import prompt_tokens
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
    """Limits that the decision depends on. What is None is unknown, or not to be looked at."""

    max_steps: int = 1200
    compact_from: int | None = None
    """Tokens in the model's context from which on history is summarised."""
    context_limit: int | None = None
    """Tokens that the model can read."""
    overhead: int = 0
    """Tokens beside history in every prompt: the tools."""


@dataclass(frozen=True)
class RunTools:
    """Run these calls, put what is answered into history, then look again."""

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
class TooLong:
    """The prompt does not fit, and to summarise it (again) cannot help."""

    tokens: int
    limit: int
    compacted: bool
    """Whether it has just been summarised."""
    kind: Literal["too_long"] = "too_long"


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


Action: TypeAlias = RunTools | Park | Compact | TooLong | Finish | StopAtLimit | Generate


def decide(snapshot: Snapshot, policy: Policy) -> Action:
    """Choose the next action; the first rule that applies."""
    unanswered = tuple(call for call in snapshot.calls if not call.answered)
    if unanswered:
        return _for_calls(unanswered)
    if snapshot.calls:  # the last result came after the claim, and is not in history yet
        return RunTools(())
    if snapshot.turn_kind is TurnKind.COMPACTION:
        return Compact()
    if is_complete(snapshot.history):
        return Finish()
    if snapshot.steps >= policy.max_steps:
        return StopAtLimit(snapshot.steps)
    return _make_room(snapshot.history, policy) or Generate()


def _for_calls(unanswered: tuple[Call, ...]) -> Action:
    """Do what is ours to do; then people are asked, then children and other apps' tasks."""
    if ours := tuple(call for call in unanswered if call.startable):
        return RunTools(ours)
    asks = any(call.asks for call in unanswered)
    return Park(CallKind.CLIENT if asks else CallKind.EXTERNAL)


def _make_room(history: tuple[Entry, ...], policy: Policy) -> Compact | TooLong | None:
    """Summarise a history that has become too long; never what a summary has just replaced."""
    since, compacted = _since_boundary(history)
    read = [e.context_tokens for e in since if e.context_tokens is not None]
    limit = policy.compact_from
    if limit is not None and read and read[-1] >= limit:
        # Judged by what the model read first: later steps may have filled the room again.
        if compacted and read[0] >= limit and _is_answered_first(since):
            return TooLong(read[0], limit, compacted=True)
        return Compact()
    if policy.context_limit is None:
        return None
    tokens = prompt_tokens(history, policy.overhead)
    if tokens <= policy.context_limit:
        return None
    answered = any(entry.role is Role.ASSISTANT for entry in since)
    helps = answered or (not compacted and len(since) > 1)
    return Compact() if helps else TooLong(tokens, policy.context_limit, compacted=compacted)


def _since_boundary(history: tuple[Entry, ...]) -> tuple[list[Entry], bool]:
    """What was said since the newest summary, and whether there is one."""
    compressed = [place for place, entry in enumerate(history) if entry.compressed]
    since = history[compressed[-1] + 1 :] if compressed else history
    system = Role.SYSTEM  # an enum takes longer to find it than to compare
    return [entry for entry in since if entry.role is not system], bool(compressed)


def _is_answered_first(since: list[Entry]) -> bool:
    """Whether the model spoke before the user did: then it read the summary and no more."""
    speakers = (e.role for e in since if e.role in (Role.USER, Role.ASSISTANT))
    return next(speakers, None) is Role.ASSISTANT


def is_complete(history: Sequence[Entry]) -> bool:
    """Whether the last word is the assistant's, and it had finished speaking."""
    if not history:
        return False
    last = history[-1]
    return (
        last.role is Role.ASSISTANT and last.stop != StopReason.PAUSE and not open_calls(last.parts)
    )
