"""A result that comes between a claim and what the step reads: it goes into history first."""

from sqlalchemy import Engine

from models import machine, snapshot
from rejoinder.core.decide import Generate, Policy, RunTools, decide
from rejoinder.core.messages import CallKind, CallPlan
from rejoinder.core.parts import ToolResult
from rejoinder.core.state import Status
from tests.chats import World, call, said


def test_a_result_that_comes_right_after_the_claim_is_put_into_history(engine: Engine) -> None:
    world = World(engine)
    subject = world.running()
    plans = {
        "client": CallPlan(CallKind.CLIENT),
        "task": CallPlan(CallKind.EXTERNAL, external_id="t"),
    }
    asked = said("Look.", call("client"), call("task"))
    fence = world.do(machine.record, subject.held, asked, plans=plans, start=["task"]).fence
    world.do(machine.require_action, fence, deadline_seconds=100)
    answered = world.do(machine.submit_results, subject.id, [ToolResult("client", "ok")])
    assert answered.status is Status.PENDING
    turn_id = answered.turn_id
    assert turn_id is not None

    fence = world.claim(subject.id)
    world.do(machine.wake, subject.id, ToolResult("task", "late"), external_id="t")
    loaded = world.transact(lambda tx: snapshot.load(tx, subject.id, turn_id))
    assert decide(loaded.snapshot, Policy()) == RunTools(())

    world.do(machine.commit, fence)
    after = world.transact(lambda tx: snapshot.load(tx, subject.id, turn_id)).snapshot
    assert [part.content for part in after.history[-1].parts] == ["ok", "late"]
    assert decide(after, Policy()) == Generate()
