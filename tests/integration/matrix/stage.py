"""Brings a chat into the state of one column, and asks for the transition of one row.

Every chat has a past, so that resets show: one crash, one retry, two open tool calls wherever a
status can have them (`call-1` of the worker's own, `call-2` for somebody outside, with the task
`task-2`), and two queued messages where there is a queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import text
from uuid_utils.compat import uuid7

from models import claims, machine
from models.engine import transaction
from rejoinder.core.effects import Effects, Fence
from rejoinder.core.messages import (
    Budget,
    CallKind,
    CallPlan,
    Compaction,
    Delivery,
    NewMessage,
    Role,
    TitleSource,
    Visibility,
    WhenBusy,
)
from rejoinder.core.parts import ToolResult
from rejoinder.core.state import LEASED, PARKED, Status, Transition
from tests.chats import BOOM, DEAD_AFTER, call, said, words

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from tests.chats import World
    from tests.integration.matrix.table import State

FOUND_1 = ToolResult("call-1", "found call-1")
FOUND_2 = ToolResult("call-2", "found call-2")
LIMIT = {"error": "overloaded"}
SUMMARY = Compaction(
    NewMessage(Role.USER, words("summary"), Visibility.MODEL, compressed=True),
    NewMessage(Role.ASSISTANT, words("compacted"), Visibility.USER, compressed=True),
    {"source": "automatic"},
)
# These cannot happen, or say nothing, while calls are open.
WITHOUT_CALLS = {
    Transition.RECORD,
    Transition.STORE_COMPACTION,
    Transition.FINISH_TURN,
    Transition.EXCEED_BUDGET,
}
# In these the worker is in the middle of call-1.
WITH_STARTED_CALL = {
    Transition.RETRY_LATER,
    Transition.FAIL,
    Transition.RELEASE,
    Transition.RECOVER,
}


@dataclass
class Scene:
    """A chat in the state of one column."""

    id: UUID
    lease_id: UUID
    """Its owner's; of nobody's, where no worker owns it."""
    first_message: int
    queue: list[int]
    fence: Fence


def set_up(world: World, state: State, transition: Transition) -> Scene:
    """Create a chat in this state, by transitions alone."""
    do, status = world.do, state.status
    chat_id = world.new().id
    do(machine.recover, chat_id, world.claim(chat_id).lease_id)
    fence = world.claim(chat_id)
    if status is not Status.WAITING and not (
        status is Status.RUNNING and transition in WITHOUT_CALLS
    ):
        approval = status is Status.REQUIRES_ACTION and transition is Transition.APPROVE
        fence = _ask(world, fence, _kinds(status, transition), approval=approval)
    do(machine.retry_later, fence, delay_seconds=0, retry_state=LIMIT)
    if status is not Status.PENDING:
        fence = world.claim(chat_id)
    if state.queued:
        for number in range(2):
            do(machine.send, chat_id, words(f"queued {number}"))
    _enter(world, state, fence, transition)
    if transition is Transition.EXPIRE and status in PARKED:
        _let_time_pass(world)
    if state.archived:
        with transaction(world.engine) as tx:
            machine.archive(tx, chat_id)
    return _scene(world, chat_id)


def _kinds(status: Status, transition: Transition) -> tuple[CallKind, CallKind]:
    match status, transition:
        case Status.REQUIRES_ACTION, Transition.WAKE:
            return CallKind.CLIENT, CallKind.EXTERNAL
        case Status.REQUIRES_ACTION, Transition.APPROVE:
            return CallKind.LOCAL, CallKind.LOCAL
        case (Status.REQUIRES_ACTION, _) | (Status.RUNNING, Transition.REQUIRE_ACTION):
            return CallKind.LOCAL, CallKind.CLIENT
    return CallKind.LOCAL, CallKind.EXTERNAL


def _ask(world: World, fence: Fence, kinds: tuple[CallKind, CallKind], *, approval: bool) -> Fence:
    recorded = world.do(
        machine.record,
        fence,
        said("Let me look.", call("call-1"), call("call-2")),
        plans={
            "call-1": CallPlan(kinds[0], Delivery.IDEMPOTENT),
            "call-2": CallPlan(kinds[1], external_id="task-2", approval=approval),
        },
    )
    assert recorded.fence is not None
    return recorded.fence


def _enter(world: World, state: State, fence: Fence, transition: Transition) -> None:
    do = world.do
    answered = [] if transition is Transition.WAKE else [FOUND_1]
    match state.status:
        case Status.PENDING:
            pass
        case Status.RUNNING:
            if transition in WITH_STARTED_CALL:
                do(machine.start_tools, fence, ["call-1"])
        case Status.INTERRUPTING:
            do(machine.start_tools, fence, ["call-1"])
            do(machine.interrupt, fence.chat_id)
        case Status.REQUIRES_ACTION:
            do(machine.require_action, fence, deadline_seconds=300, results=answered)
        case Status.SLEEPING:
            do(machine.sleep, fence, deadline_seconds=300, results=[FOUND_1])
        case Status.ERROR:
            do(machine.start_tools, fence, ["call-1"])
            do(machine.fail, fence, BOOM)
        case Status.WAITING:
            do(machine.finish_turn, fence, message=said("Done."))


def _let_time_pass(world: World) -> None:
    with world.engine.begin() as connection:
        for table in ("chats", "tool_calls"):
            late = "SET deadline = clock_timestamp() WHERE deadline IS NOT NULL"
            connection.execute(text(f"UPDATE rejoinder.{table} {late}"))


def _scene(world: World, chat_id: UUID) -> Scene:
    row = world.row(chat_id)
    lease_id = row["lease_id"] if row["status"] in LEASED else uuid7()
    (first, *_) = world.read("SELECT id FROM rejoinder.messages ORDER BY id")
    queue = world.read("SELECT id FROM rejoinder.queued_messages ORDER BY position")
    return Scene(
        id=chat_id,
        lease_id=lease_id,
        first_message=first["id"],
        queue=[queued["id"] for queued in queue],
        fence=Fence(chat_id, lease_id, row["history_version"]),
    )


def claim(world: World, scene: Scene) -> claims.Claim | None:
    """Ask for the one transition that is a statement, not a function of the machine."""
    return claims.claim(world.engine, scene.id, world.worker_id, dead_after=DEAD_AFTER)


def perform(world: World, scene: Scene, transition: Transition) -> Effects:
    """Ask for the transition, as whoever may do so would."""
    return _ACTS[transition](world, scene)


def _send(when_busy: WhenBusy) -> Callable[[World, Scene], Effects]:
    return lambda w, s: w.do(machine.send, s.id, words("new"), when_busy=when_busy)


def _last_queued(scene: Scene) -> int:
    return scene.queue[-1] if scene.queue else 1


def _tree(
    act: Callable[..., tuple[Effects, ...]], *args: object
) -> Callable[[World, Scene], Effects]:
    def run(world: World, scene: Scene) -> Effects:
        with transaction(world.engine) as tx:
            (effects,) = act(tx, scene.id, *args)
        return effects

    return run


_ACTS: dict[Transition, Callable[[World, Scene], Effects]] = {
    Transition.SEND: _send(WhenBusy.QUEUE),
    Transition.SEND_INTERRUPT: _send(WhenBusy.INTERRUPT),
    Transition.SEND_STEER: _send(WhenBusy.STEER),
    Transition.SEND_REJECT: _send(WhenBusy.REJECT),
    Transition.EDIT: lambda w, s: w.do(machine.edit, s.id, s.first_message, words("new")),
    Transition.INTERRUPT: lambda w, s: w.do(machine.interrupt, s.id),
    Transition.PROMOTE_QUEUED: lambda w, s: w.do(machine.promote_queued, s.id, _last_queued(s)),
    Transition.DELETE_QUEUED: lambda w, s: w.do(machine.delete_queued, s.id, _last_queued(s)),
    Transition.SUBMIT_RESULTS: lambda w, s: w.do(machine.submit_results, s.id, [FOUND_2]),
    Transition.APPROVE: lambda w, s: w.do(
        machine.approve, s.id, ["call-2"], approved=False, reason="too dear"
    ),
    Transition.REQUEST_COMPACTION: lambda w, s: w.do(machine.request_compaction, s.id),
    Transition.RETRY: lambda w, s: w.do(machine.retry, s.id),
    Transition.ARCHIVE: _tree(machine.archive),
    Transition.UNARCHIVE: _tree(machine.unarchive),
    Transition.SET_BUDGET: _tree(machine.set_budget, Budget(1000)),
    Transition.SET_TITLE: lambda w, s: w.do(machine.set_title, s.id, "A name", TitleSource.USER),
    Transition.SET_LABELS: lambda w, s: w.do(machine.set_labels, s.id, {"team": "blue"}),
    Transition.RECORD: lambda w, s: w.do(
        machine.record, s.fence, said("Let me look.", call("call-3")), start=["call-3"]
    ),
    Transition.START_TOOLS: lambda w, s: w.do(machine.start_tools, s.fence, ["call-1"]),
    Transition.COMMIT: lambda w, s: w.do(machine.commit, s.fence, results=[FOUND_2, FOUND_1]),
    Transition.STORE_COMPACTION: lambda w, s: w.do(machine.store_compaction, s.fence, SUMMARY),
    Transition.FINISH_TURN: lambda w, s: w.do(machine.finish_turn, s.fence, message=said("Done.")),
    Transition.RETRY_LATER: lambda w, s: w.do(
        machine.retry_later, s.fence, delay_seconds=60, retry_state=LIMIT
    ),
    Transition.REQUIRE_ACTION: lambda w, s: w.do(
        machine.require_action, s.fence, deadline_seconds=300, results=[FOUND_1]
    ),
    Transition.EXCEED_BUDGET: lambda w, s: w.do(
        machine.exceed_budget,
        s.fence,
        budget=Budget(),
        deadline_seconds=300,
        spent={"tokens": 1000},
    ),
    Transition.SLEEP: lambda w, s: w.do(
        machine.sleep, s.fence, deadline_seconds=300, results=[FOUND_1]
    ),
    Transition.FAIL: lambda w, s: w.do(machine.fail, s.fence, BOOM),
    Transition.RELEASE: lambda w, s: w.do(machine.release, s.fence),
    Transition.FINISH_INTERRUPT: lambda w, s: w.do(
        machine.finish_interrupt, s.fence, partial=said("I was about to")
    ),
    Transition.WAKE: lambda w, s: w.do(machine.wake, s.id, FOUND_2),
    Transition.EXPIRE: lambda w, s: w.do(machine.expire, s.id),
    Transition.RECOVER: lambda w, s: w.do(machine.recover, s.id, s.lease_id),
    Transition.RECONCILE: lambda w, s: w.do(machine.reconcile, s.id),
}
