"""What a chat of the model consists of, and the few moves that its transitions are made of.

Plain Python, written from the design: see `chat_model.py`, which puts these moves together.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from rejoinder.core.messages import Default

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from rejoinder.core.effects import Fence

REST = ("waiting", "error")
PARKED = ("requires_action", "sleeping")
SOON, LATER = 1 / 24, 10.0
"""Days that somebody waits for an answer."""
TOO_LATE = "No answer came before the deadline."


class Refusal(Exception):  # noqa: N818  as in the code: an answer, not an error
    """The transition does not happen; its name is the exception that the caller gets."""


@dataclass(frozen=True)
class Said:
    """An entry of history. A tool's entry lists its results, in call order."""

    role: str
    text: str
    turn: UUID | None
    compressed: bool = False
    model: str | None = None
    paused: bool = False


@dataclass(repr=False)
class Call:
    """A call whose result is not in history yet."""

    id: str
    kind: str = "local"
    once: bool = True
    state: str = "requested"
    approval: str | None = None
    patience: float = SOON
    default: str | None = None
    result: str | None = None
    note: str | None = None
    deadline: float | None = None

    @property
    def default_answer(self) -> Default | None:
        """What holds if nobody answers, for the machine."""
        known = {"approve": Default(approve=True), "content": Default(content="by default")}
        return known[self.default] if self.default else None

    @property
    def asks(self) -> bool:
        """Whether somebody outside has to answer or to allow it."""
        return self.kind == "client" or self.approval == "wanted"

    @property
    def late(self) -> bool:
        """Whether its time is up."""
        return self.deadline is not None and self.deadline < 0

    def __repr__(self) -> str:
        """As short as a trace needs it."""
        more = f"{'' if self.once else ' again'}{f' {self.approval}' if self.approval else ''}"
        return f"{self.id}:{self.kind}{more}:{self.state}"


class Ask(NamedTuple):
    """How a call is to be made."""

    kind: str
    once: bool = True
    started: bool = False
    approval: bool = False
    patience: float = SOON
    default: str | None = None

    def call(self, call_id: str) -> Call:
        """The call. One that waits for approval has not begun."""
        started = self.started and not self.approval
        return Call(
            call_id,
            self.kind,
            self.once,
            "started" if started else "requested",
            "wanted" if self.approval else None,
            self.patience,
            self.default,
        )


@dataclass(frozen=True)
class Queued:
    """A message that waits."""

    id: int | None
    text: str
    turn: UUID
    steer: bool = False
    model: str | None = None


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
    joined: dict[UUID, UUID] = field(default_factory=dict)
    status: str = "pending"
    action: str | None = None
    title: str = ""
    title_source: str = "words"
    labels: dict[str, str] = field(default_factory=dict)
    model: str = ""
    budget: int | None = None
    archived: bool = False
    lease: UUID | None = None
    worker: UUID | None = None
    woken: bool = False
    error: str | None = None
    attempt: int = 0
    crashes: int = 0
    delayed: bool = False  # not to be claimed yet
    overdue: bool = False  # pending for too long
    deadline: float | None = None  # in days; parked for too long if it is negative
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
    sends: list[str] = field(default_factory=list)

    def a_day_passes(self) -> None:
        """Let the deadlines come nearer."""
        self.deadline = None if self.deadline is None else self.deadline - 1
        for call in self.calls:
            call.deadline = None if call.deadline is None else call.deadline - 1

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
        self.delayed = self.overdue = False
        self.deadline = self.action = None
        if status not in ("running", "interrupting"):
            self.lease = self.worker = None
        if status in REST:
            self.turn = None
            self.attempt = 0

    def _park(self, status: str, calls: Sequence[Call], action: str | None = None) -> None:
        """Wait for these; each has its own time, from when the chat first waits for it."""
        for call in calls:
            if call.deadline is None:  # a person has as long as the chat waits, here
                call.deadline = SOON if call.approval == "wanted" else call.patience
        self._to(status)
        self.deadline = min(call.deadline for call in calls if call.deadline is not None)
        self.action = action

    def _append(self, role: str, text: str, *, compressed: bool = False, **more: Any) -> None:
        self.history.append(Said(role, text, more.pop("turn", self.turn), compressed, **more))
        self.history_version = self.version
        self.attempt = 0
        self.model = more.get("model") or self.model

    def _say(self, text: str, turn: UUID, model: str | None = None) -> None:
        self._open(turn, "message")
        self._append("user", text, model=model)

    def _join(self) -> bool:
        """Messages that steer go into the open turn, unless a call or a pause comes first."""
        steering = [message for message in self.queue if message.steer]
        paused = bool(self.history) and self.history[-1].paused
        if not steering or self.calls or paused or self.turn_kind == "compaction":
            return False
        assert self.turn is not None
        for message in steering:
            self.queue.remove(message)
            self.turns[message.turn], self.joined[message.turn] = "joined", self.turn
            self._append("user", message.text, turn=message.turn, model=message.model)
        self.queue_version = self.version
        return True

    def _go_on(self) -> None:
        self._join()
        self._to("pending")

    def _open(self, turn: UUID, kind: str) -> None:
        self.turn, self.turn_kind = turn, kind
        self.turns[turn] = "open"
        self.crashes = self.attempt = 0
        self.woken = False

    def _end(self, turn: UUID | None, state: str, answer: str | None = None) -> None:
        assert turn is not None
        with_it = [each for each, into in self.joined.items() if into == turn]
        for each in (turn, *with_it):
            self.turns[each] = state
            self.ended[each] = (state, answer)
            self.joined.pop(each, None)
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

    def _enqueue(self, message: Queued) -> None:
        if len(self.queue) >= 20:
            raise Refusal("Rejected")
        self.queue.append(message)
        self.turns[message.turn] = "queued"
        self.queue_version = self.version

    def _promote(self) -> None:
        head = self.queue.pop(0)
        self.queue_version = self.version
        self._say(head.text, head.turn, head.model)

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

    def _record(self, message: Message, *, paused: bool = False) -> None:
        text, calls = message
        if self.calls:
            raise Refusal("Rejected")
        self._append("assistant", text, paused=paused)
        self.calls = [replace(call) for call in calls]
        self.sends += [c.id for c in calls if c.kind == "external" and c.state == "started"]

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
            self._set(call, dict(results)[call.id])

    def _set(self, call: Call, result: str) -> None:
        """Give a call its result; what the person who allowed it said is told with it."""
        call.state, call.result = "finished", f"{result} [{call.note}]" if call.note else result

    def _decide(self, call: Call, *, approved: bool, note: str | None) -> None:
        if approved:
            call.approval, call.note, call.deadline = "granted", note, None
        else:
            call.state, call.result = "finished", "denied"

    def _overdue(self, call: Call) -> None:
        """The answer of those who do not answer. The step itself looks after children."""
        if call.approval == "wanted":
            self._decide(call, approved=call.default == "approve", note=TOO_LATE)
        elif call.kind == "children":
            pass
        elif call.default == "content":
            self._set(call, "by default")
        else:
            self._give_up(call, "timeout")

    @property
    def expired(self) -> bool:
        """Whether it has been parked for too long."""
        return self.deadline is not None and self.deadline < 0

    def _asking(self) -> list[Call]:
        return [call for call in self._unanswered() if call.asks]

    def _elsewhere(self) -> list[Call]:
        outside = ("external", "children")
        return [c for c in self._unanswered() if c.kind in outside and not c.asks]

    def _acted(self) -> None:
        """Somebody outside has acted: it goes on, unless more is asked of them."""
        self._settle()
        if left := self._asking():
            self._stay(left)
        else:
            self._go_on()

    def _stay(self, left: Sequence[Call]) -> None:
        """Wait on for these. One that was just allowed has no time of its own yet."""
        status, action = self.status, self.action
        deadline = min((c.deadline for c in left if c.deadline is not None), default=self.deadline)
        self._to(status)
        self.deadline, self.action = deadline, action

    def _settle(self) -> None:
        if self.calls and not self._unanswered():
            self._append("tool", " ".join(f"{call.id}={call.result}" for call in self.calls))
            self.calls = []

    def _give_up(self, call: Call, reason: str) -> None:
        call.state, call.result = "unknown" if call.state == "started" else "finished", reason
        if call.kind == "external":
            self.abandoned.append(f"ext-{call.id}")

    def _close(self, reason: str, *, into_history: bool = True) -> None:
        for call in self._unanswered():
            self._give_up(call, reason)
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
