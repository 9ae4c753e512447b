"""Good books for the auditor of `make chaos`: chats as workers run them, by transitions alone.

The tests around it spoil them, one thing at a time.
"""

import time
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from sqlalchemy import text

from models import claims, machine
from models.machine import NewChat
from rejoinder.core.effects import Effects, Fence
from rejoinder.core.messages import CallKind, CallPlan, Default, Delivery, WhenBusy
from rejoinder.core.parts import ToolCall, ToolResult
from scripts.chaos_parts import picture
from scripts.chaos_parts.audit import audit
from scripts.chaos_parts.evidence import Evidence
from scripts.chaos_parts.journal import Asked, Decision, Journal, Outcome
from scripts.chaos_parts.ledger import NOBODY, done
from scripts.chaos_parts.plan import Call, Plan
from tests.chats import World, said, words

TOOLS = ("ledger_once", "ledger_again", "quick")


@dataclass
class Books:
    """A database, a journal and a ledger that agree with each other."""

    world: World
    journal: Journal = field(default_factory=Journal)
    ledger: list[dict[str, Any]] = field(default_factory=list)

    def findings(self) -> list[str]:
        """Name the rules that are broken."""
        seen = Evidence(picture.take(self.world.engine), self.journal, self.ledger)
        return [finding.rule for finding in audit(seen)]

    def sql(self, statement: str, **parameters: object) -> None:
        """Spoil something behind everybody's back."""
        with self.world.engine.begin() as connection:
            connection.execute(text(statement), parameters)

    def asked(self, plan: Plan, effects: Effects, mode: str = "queue", **more: Any) -> None:
        """Note a message that was accepted."""
        now = time.time()
        ids = (str(effects.chat_id), str(effects.turn_id))
        self.journal.message(Asked(plan, mode, Outcome.ACCEPTED, now, now, *ids, **more))

    def create(self, plan: Plan) -> UUID:
        """Begin a chat."""
        effects = self.world.do(machine.create, NewChat("chaos", words(plan.text)))
        self.asked(plan, effects, "create")
        return effects.chat_id

    def send(self, chat_id: UUID, plan: Plan, mode: str = "queue") -> Effects:
        """Send a message."""
        effects = self.world.do(machine.send, chat_id, words(plan.text), when_busy=WhenBusy(mode))
        self.asked(plan, effects, mode)
        return effects

    def answer(self, chat_id: UUID, plan: Plan, done_steps: int = 0) -> None:
        """What workers do: every step, its tools, the answer."""
        for number in range(done_steps, len(plan.steps)):
            self.step(chat_id, plan, number)
        fence = self.world.claim(chat_id)
        self.tell(self.world.do(machine.finish_turn, fence, message=said(plan.answer)))

    def step(self, chat_id: UUID, plan: Plan, number: int) -> None:
        """One step with tools of a worker's own."""
        fence = self.world.claim(chat_id)
        calls = _calls(plan, number)
        start = [call.call_id for call in calls]
        plans = {call.call_id: PLANS[call.name] for call in calls}
        recorded = self.world.do(
            machine.record, fence, said("Step.", *calls), plans=plans, start=start
        )
        results = [self.work(chat_id, call) for call in calls]
        self.world.do(machine.commit, recorded.fence, results=results)

    def work(self, chat_id: UUID, call: ToolCall) -> ToolResult:
        """What a tool does."""
        nonce = str(call.arguments["nonce"])
        for what in ("begin", "end") if call.name != "quick" else ():
            self.note(what, call.name, nonce, call.call_id, chat_id)
        return ToolResult(call.call_id, done(nonce))

    def ask(self, chat_id: UUID, plan: Plan, number: int = 0) -> None:
        """One step whose calls somebody outside has to do with."""
        fence = self._record(chat_id, plan, number)
        self.world.do(machine.require_action, fence, deadline_seconds=300)

    def order(self, chat_id: UUID, plan: Plan, number: int = 0) -> None:
        """One step whose calls are another app's tasks."""
        fence = self._record(chat_id, plan, number, start=True)
        self.world.do(machine.sleep, fence, deadline_seconds=300)

    def _record(self, chat_id: UUID, plan: Plan, number: int, *, start: bool = False) -> Fence:
        calls = _calls(plan, number)
        plans = {call.call_id: PLANS[call.name] for call in calls}
        plans |= {
            call_id: replace(each, external_id=task_of(call_id))
            for call_id, each in plans.items()
            if each.kind is CallKind.EXTERNAL
        }
        fence = self.world.claim(chat_id)
        started = [call.call_id for call in calls] if start else []
        recorded = self.world.do(
            machine.record, fence, said("Step.", *calls), plans=plans, start=started
        )
        assert recorded.fence is not None
        return recorded.fence

    def deliver(self, chat_id: UUID, plan: Plan, number: int = 0, place: int = 0) -> None:
        """Another app does its task, and answers."""
        call_id, nonce = call_of(plan, number, place), plan.nonce(number, place)
        for what in ("begin", "end"):
            self.note_task(what, plan, number, place)
        answer = ToolResult(call_id, done(nonce))
        self.world.do(machine.wake, chat_id, answer, external_id=task_of(call_id))

    def note_task(self, what: str, plan: Plan, number: int = 0, place: int = 0) -> None:
        """Write a line of another app's into the ledger: it knows no chat, and no call."""
        line = {"what": what, "tool": plan.steps[number][place].tool, "pid": 1, "at": time.time()}
        names = {"nonce": plan.nonce(number, place), "task_id": task_of(call_of(plan, number))}
        self.ledger.append({**line, **names})

    def decide(self, chat_id: UUID, call_id: str, what: str, words: str = "") -> None:
        """Somebody says something about a call, and is heard."""
        if what == "answer":
            self.world.do(machine.submit_results, chat_id, [ToolResult(call_id, words)])
        else:
            allowed = what == "approve"
            self.world.do(machine.approve, chat_id, [call_id], approved=allowed, reason=words)
        now = time.time()
        told = (call_id, what, words, Outcome.ACCEPTED, now - 1, now)
        self.journal.decision(Decision(str(chat_id), *told))

    def expire(self, chat_id: UUID) -> None:
        """Let time pass, so that nobody can answer any more."""
        self.sql("UPDATE rejoinder.chats SET deadline = now() WHERE id = :id", id=chat_id)
        self.sql(
            "UPDATE rejoinder.tool_calls SET deadline = now(), created_at = now() - interval '1 h'"
            " WHERE chat_id = :id",
            id=chat_id,
        )
        self.world.do(machine.expire, chat_id)

    def run(self, chat_id: UUID, plan: Plan, number: int = 0) -> None:
        """Run calls that were allowed."""
        calls = _calls(plan, number)
        fence = self.world.claim(chat_id)
        started = self.world.do(machine.start_tools, fence, [call.call_id for call in calls])
        results = [self.work(chat_id, call) for call in calls]
        self.world.do(machine.commit, started.fence, results=results)

    def note(self, what: str, tool: str, nonce: str, call_id: str, chat_id: UUID) -> None:
        """Write a line into the ledger."""
        line = {"what": what, "tool": tool, "nonce": nonce, "call_id": call_id, "pid": 1}
        self.ledger.append({**line, "at": time.time(), "chat_id": str(chat_id)})

    def tell(self, effects: Effects) -> None:
        """Announce the turns that are over."""
        claims.announced(self.world.engine, [end.turn_id for end in effects.ended])


PLANS = {
    "ledger_once": CallPlan(),
    "ledger_again": CallPlan(delivery=Delivery.IDEMPOTENT),
    "quick": CallPlan(delivery=Delivery.IDEMPOTENT),
    "ledger_asked": CallPlan(approval=True),
    "ledger_agreed": CallPlan(approval=True, default=Default(approve=True)),
    "ask_office": CallPlan(CallKind.CLIENT),
    "task_once": CallPlan(CallKind.EXTERNAL),
    "task_again": CallPlan(CallKind.EXTERNAL, Delivery.IDEMPOTENT),
    "ask_briefly": CallPlan(CallKind.CLIENT, default=Default(content=NOBODY)),
}


def _calls(plan: Plan, number: int) -> list[ToolCall]:
    return [
        ToolCall(call_of(plan, number, at), call.tool, {"nonce": plan.nonce(number, at)})
        for at, call in enumerate(plan.steps[number])
    ]


def call_of(plan: Plan, number: int = 0, place: int = 0) -> str:
    """The id of a plan's call."""
    return f"toolu_{plan.nonce(number, place)}"


def task_of(call_id: str) -> str:
    """The id of another app's task."""
    return f"task-{call_id}"


def plan(plan_id: str, *steps: tuple[str, ...]) -> Plan:
    """Build a plan of these tools."""
    return Plan(plan_id, tuple(tuple(Call(tool, 0.0) for tool in step) for step in steps))
