"""What a chat of the model consists of, and the few moves that its transitions are made of.

Plain Python, written from the design: see `chat_model.py`, which puts these moves together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from rejoinder.core.effects import Fence

REST = ("waiting", "error")
PARKED = ("requires_action", "sleeping")


class Refusal(Exception):  # noqa: N818  as in the code: an answer, not an error
    """The transition does not happen; its name is the exception that the caller gets."""


@dataclass(frozen=True)
class Said:
    """An entry of history. A tool's entry lists its results, in call order."""

    role: str
    text: str
    turn: UUID | None
    compressed: bool = False


@dataclass(repr=False)
class Call:
    """A call whose result is not in history yet."""

    id: str
    kind: str = "local"
    once: bool = True
    state: str = "requested"
    result: str | None = None

    def __repr__(self) -> str:
        """As short as a trace needs it."""
        return f"{self.id}:{self.kind}{'' if self.once else ' again'}:{self.state}"


@dataclass(frozen=True)
class Queued:
    """A message that waits."""

    id: int | None
    text: str
    turn: UUID


Message = tuple[str, tuple[Call, ...]]  # what the assistant says, and what it asks for


@dataclass
class State:
    """One chat: what the rows say about it, and nothing else."""

    id: UUID
    owner: str
    parent: UUID | None
    root: UUID
    turn: UUID | None = None
    turn_kind: str = "message"
    status: str = "pending"
    archived: bool = False
    lease: UUID | None = None
    worker: UUID | None = None
    woken: bool = False
    error: str | None = None
    attempt: int = 0
    crashes: int = 0
    delayed: bool = False  # not to be claimed yet
    overdue: bool = False  # pending for too long
    expired: bool = False  # parked for too long
    snapshot: int = 1
    history_version: int = 1
    queue_version: int = 1
    history: list[Said] = field(default_factory=list)
    queue: list[Queued] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    turns: dict[UUID, str] = field(default_factory=dict)
    # of the transition under way:
    version: int = 1
    ended: dict[UUID, tuple[str, str | None]] = field(default_factory=dict)
    abandoned: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)

    def _not_archived(self) -> None:
        if self.archived:
            raise Refusal("Rejected")

    def _at_rest(self) -> None:
        if self.archived or self.status not in REST:
            raise Refusal("Rejected")

    def _owned(self, fence: Fence, *, stopping: bool = False) -> None:
        if (fence.lease_id, fence.history_version) != (self.lease, self.history_version):
            raise Refusal("Stale")
        if self.status == "interrupting" and not stopping:
            raise Refusal("StopRequested")

    def _to(self, status: str, error: str | None = None) -> None:
        self.status, self.error = status, error
        self.delayed = self.overdue = self.expired = False
        if status not in ("running", "interrupting"):
            self.lease = self.worker = None
        if status in REST:
            self.turn = None
            self.attempt = 0

    def _append(self, role: str, text: str, *, compressed: bool = False) -> None:
        self.history.append(Said(role, text, self.turn, compressed))
        self.history_version = self.version
        self.attempt = 0

    def _say(self, text: str, turn: UUID) -> None:
        self._open(turn, "message")
        self._append("user", text)

    def _open(self, turn: UUID, kind: str) -> None:
        self.turn, self.turn_kind = turn, kind
        self.turns[turn] = "open"
        self.crashes = self.attempt = 0
        self.woken = False

    def _end(self, turn: UUID | None, state: str, answer: str | None = None) -> None:
        assert turn is not None
        self.turns[turn] = state
        self.ended[turn] = (state, answer)
        self.woken = self.woken and turn != self.turn

    def _last_answer(self) -> str | None:
        for said in reversed(self.history):
            if said.role == "assistant" and said.turn == self.turn and not said.compressed:
                return said.text
        return None

    def _queued(self, queued: int) -> Queued:
        for message in self.queue:
            if message.id == queued:
                return message
        raise Refusal("Rejected")

    def _enqueue(self, text: str, turn: UUID, queued: int | None) -> None:
        if len(self.queue) >= 20:
            raise Refusal("Rejected")
        self.queue.append(Queued(queued, text, turn))
        self.turns[turn] = "queued"
        self.queue_version = self.version

    def _promote(self) -> None:
        head = self.queue.pop(0)
        self.queue_version = self.version
        self._say(head.text, head.turn)

    def _rest_or_next(self) -> None:
        if self.queue:
            self._promote()
            self._to("pending")
        else:
            self._to("waiting")

    def _stop(self, reason: str) -> None:
        if self.status == "interrupting":
            return
        if self.status == "running":
            self.hints.append("interrupt")
            self._to("interrupting")
            return
        self._close(reason)
        self._end(self.turn, "interrupted", self._last_answer())
        self._rest_or_next()

    def _finish_stopped(self, results: Sequence[tuple[str, str]], partial: Message | None) -> None:
        self._answer(results)
        self._close("interrupted")
        if partial:
            self._record(partial)
            self._close("interrupted")
        self._end(self.turn, "interrupted", self._last_answer())
        self._rest_or_next()

    def _record(self, message: Message) -> None:
        text, calls = message
        if self.calls:
            raise Refusal("Rejected")
        self._append("assistant", text)
        self.calls = list(calls)

    def _unanswered(self, kind: str | None = None) -> list[Call]:
        return [c for c in self.calls if c.result is None and kind in (None, c.kind)]

    def _named(self, call_ids: Sequence[str]) -> list[Call]:
        if not set(call_ids) <= {call.id for call in self.calls}:
            raise Refusal("Rejected")
        return [call for call in self.calls if call.id in call_ids]

    def _answer(self, results: Sequence[tuple[str, str]]) -> None:
        if len(dict(results)) < len(results):
            raise Refusal("Rejected")
        for call in self._named([call_id for call_id, _ in results]):
            if call.result is not None:
                raise Refusal("Rejected")
            call.state, call.result = "finished", dict(results)[call.id]

    def _settle(self) -> None:
        if self.calls and not self._unanswered():
            self._append("tool", " ".join(f"{call.id}={call.result}" for call in self.calls))
            self.calls = []

    def _close(self, reason: str, *, into_history: bool = True) -> None:
        for call in self._unanswered():
            call.state, call.result = "unknown" if call.state == "started" else "finished", reason
            if call.kind == "external":
                self.abandoned.append(f"ext-{call.id}")
        if into_history:
            self._settle()
        self.calls = []

    def _hand_back(self, results: Sequence[tuple[str, str]]) -> None:
        self._answer(results)
        for call in self._unanswered():
            if call.state == "started" and call.kind == "local":
                call.state = "unknown" if call.once else "requested"
                call.result = "unknown" if call.once else None
        self._settle()
