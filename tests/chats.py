"""Brings chats into any state by real transitions, and reads back what the rows say.

Used by the integration tests. Nothing here writes a row by hand: if a state cannot be reached by
transitions, the machine has no business accepting it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Engine, text
from sqlalchemy.orm import Session
from uuid_utils.compat import uuid7

from models import claims, machine
from models.engine import transaction
from models.machine import NewChat, keys
from models.machine.cas_store import KnownRow, perform
from rejoinder.core.effects import Effects, Fence
from rejoinder.core.messages import CallKind, CallPlan, Failure, NewMessage, Role
from rejoinder.core.parts import Part, Text, ToolCall
from rejoinder.core.state import Status

DEAD_AFTER = timedelta(seconds=15)
BOOM = Failure("generic", "It broke.")


def words(text: str) -> tuple[Part, ...]:
    """Build the parts of a plain message."""
    return (Text(text),)


def said(text: str, *calls: ToolCall) -> NewMessage:
    """Build what the assistant says, and the tools it asks for."""
    return NewMessage(Role.ASSISTANT, (*words(text), *calls))


def call(call_id: str = "call-1", name: str = "look_up") -> ToolCall:
    """Build a tool call."""
    return ToolCall(call_id, name, {"q": call_id})


def once(
    tx: Session,
    key: str | None,
    transition: Callable[..., Effects],
    *args: Any,
    owner: str = "owner",
    request: str = "",
    **options: Any,
) -> Effects:
    """Run a transition as a command with this key, if it has one."""
    if key is None:
        return transition(tx, *args, **options)
    done = keys.once(tx, owner, key, request, lambda: transition(tx, *args, **options))
    return done[0]


@dataclass
class Subject:
    """A chat under test and, while it is owned, the fence of its owner."""

    id: UUID
    fence: Fence | None = None

    @property
    def held(self) -> Fence:
        """The fence; only for chats that a worker owns."""
        assert self.fence is not None
        return self.fence


class World:
    """A database with one live worker, and chats in it."""

    compares_and_sets = True
    """Whether lease holders write by compare-and-set, where they can, or always under the lock."""

    def __init__(self, engine: Engine) -> None:
        """Register a worker."""
        self.engine = engine
        self.worker_id = self.worker()
        self.known: dict[UUID, KnownRow] = {}
        """By lease, what its owner knows. Without it, transitions run under the lock."""

    def worker(self, name: str = "worker") -> UUID:
        """Register one more live worker."""
        worker_id = uuid7()
        claims.register_worker(self.engine, worker_id, name)
        return worker_id

    def do(self, transition: Callable[..., Any], *args: Any, **kwargs: Any) -> Effects:
        """Run one transition by itself; an owner's on what it knows, as workers do."""
        if args and isinstance(args[0], Fence):
            known = self.known.pop(args[0].lease_id, None) if self.compares_and_sets else None
            done = perform(self.engine, known, transition, *args, **kwargs)
            if done.known is not None:
                self.known[args[0].lease_id] = done.known
            return done.effects
        with transaction(self.engine) as tx:
            effects: Effects = transition(tx, *args, **kwargs)
        return effects

    def read(self, query: str, **parameters: object) -> list[dict[str, Any]]:
        """Rows, as dictionaries."""
        with self.engine.connect() as connection:
            return [dict(row) for row in connection.execute(text(query), parameters).mappings()]

    def row(self, chat_id: UUID) -> dict[str, Any]:
        """Read the chat's row."""
        (row,) = self.read("SELECT * FROM rejoinder.chats WHERE id = :id", id=chat_id)
        return row

    def dump(self) -> dict[str, list[dict[str, Any]]]:
        """Read every row but the workers': nothing changed if two dumps are equal."""
        return {
            table: self.read(f"SELECT * FROM rejoinder.{table} ORDER BY 1, 2")  # noqa: S608
            for table in (
                "chats",
                "turns",
                "messages",
                "queued_messages",
                "tool_calls",
                "idempotency_keys",
            )
        }

    def claim(self, chat_id: UUID, worker_id: UUID | None = None) -> Fence:
        """Claim a chat that must be claimable."""
        got = claims.claim(self.engine, chat_id, worker_id or self.worker_id, dead_after=DEAD_AFTER)
        assert got is not None, "the chat could not be claimed"
        if got.known is not None:
            self.known[got.fence.lease_id] = got.known
        return got.fence

    def new(self, content: str = "hello", **kwargs: Any) -> Subject:
        """Create a pending chat."""
        effects = self.do(machine.create, NewChat("owner", words(content), **kwargs))
        return Subject(effects.chat_id)

    def running(self) -> Subject:
        """Create a chat that a worker owns."""
        subject = self.new()
        subject.fence = self.claim(subject.id)
        return subject

    def asking(
        self, *calls: ToolCall, kind: CallKind = CallKind.LOCAL, start: bool = False
    ) -> Subject:
        """Create a running chat whose assistant has asked for tools (one by default)."""
        subject = self.running()
        calls = calls or (call(),)
        subject.fence = self.do(
            machine.record,
            subject.held,
            said("Let me look.", *calls),
            plans={c.call_id: CallPlan(kind, external_id=f"task-{c.call_id}") for c in calls},
            start=[c.call_id for c in calls] if start else [],
        ).fence
        return subject

    def chat(  # noqa: C901  # one case per status
        self, status: Status, *, queued: int = 0, archived: bool = False
    ) -> Subject:
        """Create a chat in this state, reached by transitions alone."""
        match status:
            case Status.PENDING:
                subject = self.new()
            case Status.RUNNING | Status.INTERRUPTING:
                subject = self.running()
            case Status.REQUIRES_ACTION:
                subject = self.asking(kind=CallKind.CLIENT)
                self.do(machine.require_action, subject.held, deadline_seconds=300)
            case Status.SLEEPING:
                subject = self.asking(kind=CallKind.EXTERNAL)
                self.do(machine.sleep, subject.held, deadline_seconds=300)
            case Status.WAITING | Status.ERROR:
                subject = self.running()
        for number in range(queued):
            self.do(machine.send, subject.id, words(f"queued {number}"))
        match status:
            case Status.INTERRUPTING:
                self.do(machine.interrupt, subject.id)
            case Status.WAITING:
                self.do(machine.finish_turn, subject.held, message=said("Done."))
            case Status.ERROR:
                self.do(machine.fail, subject.held, BOOM)
            case _:
                pass
        if archived:
            with transaction(self.engine) as tx:
                machine.archive(tx, subject.id)
        if status not in (Status.RUNNING, Status.INTERRUPTING):
            subject.fence = None
        return subject

    def transact(self, act: Callable[[Session], Any]) -> Any:
        """Run several steps in one transaction."""
        with transaction(self.engine) as tx:
            return act(tx)
