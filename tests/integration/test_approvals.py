"""Approvals and client-side calls in one message: each is decided once, by itself, in its time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from models import machine
from models.machine import calls as texts
from models.snapshot import load
from rejoinder.core.decide import Park, Policy, RunTools, decide
from rejoinder.core.errors import Rejected
from rejoinder.core.messages import Budget, CallKind, CallPlan, Default, Delivery, WhenBusy
from rejoinder.core.parts import ToolResult
from rejoinder.core.state import Status
from tests.chats import BOOM, Subject, World, call, said, words
from tests.integration.invariants import assert_invariants
from tests.integration.reading import calls, history, message_id, queue, sql

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

    from rejoinder.core.effects import Effects

LOCAL = CallPlan()
ASKED = CallPlan(approval=True)
ASKED_AGAIN = CallPlan(approval=True, delivery=Delivery.IDEMPOTENT)
YES = CallPlan(approval=True, default=Default(approve=True))
NO = CallPlan(approval=True, default=Default(approve=False))
CLIENT = CallPlan(CallKind.CLIENT)
WITH_DEFAULT = CallPlan(CallKind.CLIENT, default=Default(content="nobody knows"))
TASK = CallPlan(CallKind.EXTERNAL, external_id="task", approval=True, seconds=60)


@pytest.fixture
def world(engine: Engine) -> Iterator[World]:
    yield World(engine)
    assert_invariants(engine)


def parked(world: World, *plans: CallPlan) -> Subject:
    """A chat that requires action for call-1, call-2 …; local ones without approval have run."""
    subject = world.running()
    ids = [f"call-{number}" for number in range(1, len(plans) + 1)]
    ours = [i for i, plan in zip(ids, plans, strict=True) if plan == LOCAL]
    subject.fence = world.do(
        machine.record,
        subject.held,
        said("Let me look.", *map(call, ids)),
        plans=dict(zip(ids, plans, strict=True)),
        start=ours,
    ).fence
    results = [ToolResult(each, f"did {each}") for each in ours]
    world.do(machine.require_action, subject.held, deadline_seconds=300, results=results)
    return subject


def result(number: int) -> ToolResult:
    return ToolResult(f"call-{number}", f"found {number}")


def approve(world: World, subject: Subject, *numbers: int, reason: str | None = None) -> Effects:
    return _decide(world, subject, numbers, approved=True, reason=reason)


def deny(world: World, subject: Subject, *numbers: int, reason: str | None = None) -> Effects:
    return _decide(world, subject, numbers, approved=False, reason=reason)


def _decide(
    world: World, subject: Subject, numbers: tuple[int, ...], *, approved: bool, reason: str | None
) -> Effects:
    ids = [f"call-{number}" for number in numbers] or None
    return world.do(machine.approve, subject.id, ids, approved=approved, reason=reason)


def asked(effects: Effects) -> list[str]:
    """The calls that the newest `action_required` names."""
    told = [event.data for event in effects.events if event.kind == "action_required"]
    data: Any = told[-1]["calls"] if told else []
    return [each["call_id"] for each in data]


def due(world: World, *numbers: int) -> None:
    """Let these calls' time be up, and the chat's with them."""
    for number in numbers:
        sql(
            world,
            "UPDATE rejoinder.tool_calls SET deadline = clock_timestamp() WHERE call_id = :id",
            id=f"call-{number}",
        )
    sql(world, "UPDATE rejoinder.chats SET deadline = clock_timestamp()")


def next_action(world: World, subject: Subject) -> Any:
    subject.fence = world.claim(subject.id)
    (row,) = world.read("SELECT turn_id FROM rejoinder.chats WHERE id = :id", id=subject.id)
    loaded = world.transact(lambda tx: load(tx, subject.id, row["turn_id"]))
    return decide(loaded.snapshot, Policy())


def test_results_and_approvals_come_in_any_order_and_the_chat_goes_on_after_the_last(
    world: World,
) -> None:
    subject = parked(world, ASKED, CLIENT, LOCAL, ASKED)
    first = approve(world, subject, 4)
    assert (first.status, first.dispatch) == (Status.REQUIRES_ACTION, None)
    assert asked(first) == ["call-1", "call-2"]
    second = world.do(machine.submit_results, subject.id, [result(2)])
    assert asked(second) == ["call-1"]
    last = deny(world, subject, 1, reason="no")
    assert last.status is Status.PENDING
    assert last.dispatch is not None
    action = next_action(world, subject)
    assert isinstance(action, RunTools)
    assert [each.call_id for each in action.calls] == ["call-4"], "only what was allowed"
    assert len(history(world, subject.id)) == 2
    world.do(machine.start_tools, subject.held, ["call-4"])
    world.do(machine.commit, subject.held, results=[result(4)])
    assert history(world, subject.id)[-1] == (
        f"tool: call-1!{texts.DENIED} The reason: no call-2=found 2 call-3=did call-3"
        " call-4=found 4"
    )


@pytest.mark.parametrize("numbers", [(1,), (2,), (3,), (9,), (1, 3)])
def test_an_approval_that_nobody_asked_for_changes_nothing(
    world: World, numbers: tuple[int, ...]
) -> None:
    subject = parked(world, CLIENT, LOCAL, ASKED, ASKED)
    approve(world, subject, 3)
    before = world.dump()
    with pytest.raises(Rejected, match="Nobody is asked to approve"):
        deny(world, subject, *numbers)
    assert world.dump() == before


def test_an_approval_comes_once(world: World) -> None:
    subject = parked(world, ASKED)
    approve(world, subject)
    before = world.dump()
    with pytest.raises(Rejected, match="nothing waits for approval any more"):
        deny(world, subject)
    assert world.dump() == before


def test_an_approval_for_an_earlier_turn_is_refused(world: World) -> None:
    subject = parked(world, ASKED)
    other = world.new()
    with pytest.raises(Rejected, match="an earlier turn"):
        world.do(machine.approve, subject.id, approved=True, turn_id=world.row(other.id)["turn_id"])


def test_a_result_for_a_call_that_waits_for_approval_is_refused(world: World) -> None:
    subject = parked(world, ASKED, CLIENT)
    with pytest.raises(Rejected, match="take approve or deny"):
        world.do(machine.submit_results, subject.id, [result(1), result(2)])


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("done", "done\n\n[It was allowed with the words: be quick]"),
        (
            [{"type": "text", "text": "done"}],
            [
                {"type": "text", "text": "done"},
                {"type": "text", "text": "[It was allowed with the words: be quick]"},
            ],
        ),
        ({"n": 1}, {"result": {"n": 1}, "note": "[It was allowed with the words: be quick]"}),
    ],
)
def test_the_words_of_who_allowed_a_call_go_with_its_result(
    world: World, content: Any, told: Any
) -> None:
    subject = parked(world, ASKED)
    approve(world, subject, reason="be quick")
    fence = world.claim(subject.id)
    fence = world.do(machine.start_tools, fence, ["call-1"]).fence or fence
    world.do(machine.commit, fence, results=[ToolResult("call-1", content)])
    (row,) = world.read("SELECT parts FROM rejoinder.messages WHERE role = 'tool'")
    assert row["parts"][0]["content"] == told


def test_a_call_cannot_be_started_before_it_is_allowed(world: World) -> None:
    subject = world.running()
    fence = world.do(
        machine.record, subject.held, said("Look.", call()), plans={"call-1": ASKED}
    ).fence
    with pytest.raises(Rejected, match="waits for approval"):
        world.do(machine.start_tools, fence, ["call-1"])


def test_each_call_that_is_late_gets_its_own_answer_and_the_others_keep_their_time(
    world: World,
) -> None:
    subject = parked(world, YES, NO, ASKED, WITH_DEFAULT, CLIENT, CLIENT)
    due(world, 1, 2, 3, 4, 5)
    effects = world.do(machine.expire, subject.id)
    assert effects.status is Status.REQUIRES_ACTION
    assert asked(effects) == ["call-6"], "readers learn what is still asked"
    chat = world.row(subject.id)
    (left,) = world.read("SELECT deadline FROM rejoinder.tool_calls WHERE call_id = 'call-6'")
    assert (chat["deadline"], chat["action"]) == (left["deadline"], "calls")
    world.do(machine.submit_results, subject.id, [result(6)])
    assert isinstance(next_action(world, subject), RunTools), "the first was allowed by default"
    world.do(machine.start_tools, subject.held, ["call-1"])
    world.do(machine.commit, subject.held, results=[result(1)])
    late = f"{texts.DENIED} The reason: {texts.TIMED_OUT}"
    assert history(world, subject.id)[-1] == (
        f"tool: call-1=found 1\n\n[It was allowed with the words: {texts.BY_DEFAULT}]"
        f" call-2!{late} call-3!{late} call-4=nobody knows call-5!{texts.TIMED_OUT} call-6=found 6"
    )


def test_the_last_late_call_lets_the_chat_go_on(world: World) -> None:
    subject = parked(world, CLIENT, NO)
    due(world, 1, 2)
    effects = world.do(machine.expire, subject.id)
    assert effects.status is Status.PENDING
    assert effects.dispatch is not None


def test_an_approval_and_the_task_that_it_allows_have_a_patience_of_their_own(
    world: World,
) -> None:
    plan = CallPlan(
        CallKind.EXTERNAL,
        external_id="task",
        approval=True,
        seconds=1000,
        default=Default(approve=False, seconds=10),
    )
    subject = parked(world, plan)
    assert _seconds_left(world) == pytest.approx(10, abs=5)
    approve(world, subject)
    fence = world.claim(subject.id)
    started = world.do(machine.start_tools, fence, ["call-1"])
    assert [send.external_id for send in started.sends] == ["task"]
    world.do(machine.sleep, started.fence, deadline_seconds=300)
    assert _seconds_left(world) == pytest.approx(1000, abs=5)
    due(world, 1)
    effects = world.do(machine.expire, subject.id)
    assert effects.abandoned == ("task",)
    told = history(world, subject.id)[-1]
    assert told.startswith(f"tool: call-1!{texts.TIMED_OUT}"), "not the approval's default"
    assert "may still be running" in told


def _seconds_left(world: World) -> float:
    (row,) = world.read(
        "SELECT extract(epoch FROM deadline - now())::float AS left FROM rejoinder.chats"
    )
    return float(row["left"])


def test_a_task_is_sent_when_it_is_allowed_and_not_before(world: World) -> None:
    subject = world.running()
    recorded = world.do(machine.record, subject.held, said("Look.", call()), plans={"call-1": TASK})
    parking = world.do(machine.require_action, recorded.fence, deadline_seconds=60)
    allowed = approve(world, subject)
    assert (recorded.sends, parking.sends, allowed.sends) == ((), (), ())
    fence = world.claim(subject.id)
    (sent,) = world.do(machine.start_tools, fence, ["call-1"]).sends
    assert (sent.external_id, sent.call_id, sent.arguments) == ("task", "call-1", {"q": "call-1"})


def test_a_denied_task_leaves_nothing_to_revoke(world: World) -> None:
    subject = parked(world, TASK)
    effects = deny(world, subject)
    assert (effects.sends, effects.abandoned) == ((), ())


@pytest.mark.parametrize("how", ["interrupt", "message"])
def test_a_stop_answers_what_was_asked_and_a_late_click_is_refused(world: World, how: str) -> None:
    subject = parked(world, ASKED, CLIENT)
    if how == "interrupt":
        world.do(machine.interrupt, subject.id)
        reason = texts.INTERRUPTED
    else:
        world.do(machine.send, subject.id, words("other"), when_busy=WhenBusy.INTERRUPT)
        reason = texts.SUPERSEDED
    assert history(world, subject.id)[2] == f"tool: call-1!{reason} call-2!{reason}"
    before = world.dump()
    with pytest.raises(Rejected):
        approve(world, subject)
    with pytest.raises(Rejected):
        world.do(machine.submit_results, subject.id, [result(2)])
    assert world.dump() == before


def test_an_edit_forgets_what_was_asked(world: World) -> None:
    subject = parked(world, ASKED, CLIENT)
    world.do(machine.edit, subject.id, message_id(world, "hello"), words("anew"))
    assert history(world, subject.id) == ["user: anew"]
    with pytest.raises(Rejected):
        approve(world, subject)


@pytest.mark.parametrize("when_busy", [WhenBusy.QUEUE, WhenBusy.STEER])
def test_a_message_waits_until_every_call_is_answered(world: World, when_busy: WhenBusy) -> None:
    subject = parked(world, ASKED, CLIENT)
    world.do(machine.send, subject.id, words("and also"), when_busy=when_busy)
    world.do(machine.submit_results, subject.id, [result(2)])
    deny(world, subject)
    steered = when_busy is WhenBusy.STEER
    assert queue(world, subject.id) == ([] if steered else ["and also"])
    said_last = "user: and also" if steered else "tool: call-1"
    assert history(world, subject.id)[-1].startswith(said_last)


@pytest.mark.parametrize("plan", [ASKED, ASKED_AGAIN])
def test_a_worker_that_dies_before_the_call_begins_leaves_it_allowed(
    world: World, plan: CallPlan
) -> None:
    subject = parked(world, plan)
    approve(world, subject)
    fence = world.claim(subject.id)
    world.do(machine.recover, subject.id, fence.lease_id)
    action = next_action(world, subject)
    assert isinstance(action, RunTools)
    assert [each.call_id for each in action.calls] == ["call-1"], "nobody is asked twice"


def test_a_worker_that_dies_in_an_allowed_call_leaves_it_unknown_or_repeats_it(
    world: World,
) -> None:
    subject = parked(world, ASKED, ASKED_AGAIN)
    approve(world, subject)
    fence = world.claim(subject.id)
    started = world.do(machine.start_tools, fence, ["call-1", "call-2"])
    assert started.fence
    world.do(machine.recover, subject.id, started.fence.lease_id)
    assert calls(world, subject.id) == {"call-1": "unknown", "call-2": "requested"}
    action = next_action(world, subject)
    assert isinstance(action, RunTools)
    assert [each.call_id for each in action.calls] == ["call-2"]


@pytest.mark.parametrize("leave", ["recover", "release"])
def test_what_was_not_asked_yet_is_asked_by_the_next_worker(world: World, leave: str) -> None:
    subject = world.running()
    ids = ["call-1", "call-2", "call-3"]
    fence = world.do(
        machine.record,
        subject.held,
        said("Look.", *map(call, ids)),
        plans=dict(zip(ids, (ASKED, CLIENT, LOCAL), strict=True)),
        start=["call-3"],
    ).fence
    assert fence
    if leave == "recover":
        world.do(machine.recover, subject.id, fence.lease_id)
    else:
        world.do(machine.release, fence, untouched=["call-3"])
        fence = world.claim(subject.id)
        fence = world.do(machine.start_tools, fence, ["call-3"]).fence
        world.do(machine.commit, fence, results=[result(3)])
    action = next_action(world, subject)
    assert isinstance(action, Park)
    assert action.waits_for is CallKind.CLIENT
    effects = world.do(machine.require_action, subject.held, deadline_seconds=60)
    assert asked(effects) == ["call-1", "call-2"]


@pytest.mark.parametrize("waits_for", ["approval", "children", "budget"])
def test_a_chat_that_waits_is_consistent(world: World, waits_for: str) -> None:
    subject = parked(world, ASKED) if waits_for == "approval" else world.running()
    if waits_for == "children":
        plans = {"call-1": CallPlan(CallKind.CHILDREN, waits_for=(subject.id,))}
        fence = world.do(machine.record, subject.held, said("Look.", call()), plans=plans).fence
        world.do(machine.sleep, fence, deadline_seconds=60)
    elif waits_for == "budget":
        world.do(
            machine.exceed_budget, subject.held, budget=Budget(), deadline_seconds=60, spent={}
        )
    before = world.dump()
    assert not world.do(machine.reconcile, subject.id).changed
    assert world.dump() == before


def test_a_failed_chat_keeps_an_approval_for_the_retry(world: World) -> None:
    subject = parked(world, ASKED, ASKED)
    approve(world, subject, 1)
    deny(world, subject, 2)
    fence = world.claim(subject.id)

    world.do(machine.fail, fence, BOOM)
    world.do(machine.retry, subject.id)
    action = next_action(world, subject)
    assert isinstance(action, RunTools)
    assert [each.call_id for each in action.calls] == ["call-1"]
