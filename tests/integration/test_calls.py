"""Tool calls: who answers them, in what order they enter history, and what a crash leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from models import machine
from models.machine import calls as texts
from rejoinder.core.errors import Rejected, Stale
from rejoinder.core.messages import CallKind, CallPlan, Delivery
from rejoinder.core.parts import ToolCall, ToolResult
from rejoinder.core.state import Status
from tests.chats import BOOM, Subject, World, call, said, words
from tests.integration.reading import calls, history, sql

if TYPE_CHECKING:
    from sqlalchemy import Engine

LOCAL = CallPlan()
AGAIN = CallPlan(delivery=Delivery.IDEMPOTENT)
CLIENT = CallPlan(CallKind.CLIENT)


@pytest.fixture
def world(engine: Engine) -> World:
    return World(engine)


def external(number: int) -> CallPlan:
    return CallPlan(CallKind.EXTERNAL, external_id=f"task-{number}")


def asking(world: World, *plans: CallPlan, start: tuple[int, ...] = ()) -> Subject:
    """A running chat whose assistant has asked for call-1, call-2 … with these plans."""
    subject = world.running()
    ids = [f"call-{number}" for number in range(1, len(plans) + 1)]
    subject.fence = world.do(
        machine.record,
        subject.held,
        said("Let me look.", *map(call, ids)),
        plans=dict(zip(ids, plans, strict=True)),
        start=[f"call-{number}" for number in start],
    ).fence
    return subject


def found(number: int) -> ToolResult:
    return ToolResult(f"call-{number}", f"found {number}")


def test_results_enter_history_in_call_order_in_one_message_whoever_answers_first(
    world: World,
) -> None:
    subject = asking(world, external(1), CLIENT, LOCAL, start=(3,))
    world.do(machine.require_action, subject.held, deadline_seconds=60, results=[found(3)])
    world.do(machine.submit_results, subject.id, [found(2)])
    assert len(history(world, subject.id)) == 2, "nothing before the last answer"
    world.do(machine.sleep, world.claim(subject.id), deadline_seconds=60)
    effects = world.do(machine.wake, subject.id, found(1))
    assert effects.status is Status.PENDING
    assert history(world, subject.id)[2:] == ["tool: call-1=found 1 call-2=found 2 call-3=found 3"]
    assert set(calls(world, subject.id).values()) == {"finished settled"}


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ([1], "missing 'call-2'"),
        ([], "missing 'call-1', 'call-2'"),
        ([1, 2, 3], "unexpected 'call-3'"),
        ([1, 2, 2], "twice 'call-2'"),
        ([1, 4], "unexpected 'call-4'; missing 'call-2'"),
    ],
)
def test_results_that_do_not_fit_the_open_calls_are_refused(
    world: World, given: list[int], complaint: str
) -> None:
    subject = asking(world, CLIENT, CLIENT, LOCAL, start=(3,))
    world.do(machine.require_action, subject.held, deadline_seconds=60, results=[found(3)])
    before = world.dump()
    with pytest.raises(Rejected, match=complaint):
        world.do(machine.submit_results, subject.id, [found(number) for number in given])
    assert world.dump() == before


def test_results_are_taken_once(world: World) -> None:
    subject = world.chat(Status.REQUIRES_ACTION)
    world.do(machine.submit_results, subject.id, [found(1)])
    before = world.dump()
    with pytest.raises(Rejected, match="once"):
        world.do(machine.submit_results, subject.id, [found(1)])
    assert world.dump() == before


def test_a_result_that_comes_before_the_chat_sleeps_is_kept_for_it(world: World) -> None:
    subject = asking(world, external(1))
    woken = world.do(machine.wake, subject.id, found(1))
    assert (woken.status, woken.dispatch) == (Status.RUNNING, None)
    assert woken.fence == subject.held, "its owner goes on undisturbed"
    assert calls(world, subject.id) == {"call-1": "finished"}
    effects = world.do(machine.sleep, subject.held, deadline_seconds=60)
    assert effects.status is Status.PENDING
    assert effects.dispatch is not None
    assert history(world, subject.id)[-1] == "tool: call-1=found 1"


def test_a_bare_wake_up_that_comes_before_the_chat_sleeps_is_kept_for_it(world: World) -> None:
    subject = asking(world, external(1))
    world.do(machine.wake, subject.id)
    assert world.row(subject.id)["woken"]
    effects = world.do(machine.sleep, subject.held, deadline_seconds=60)
    assert effects.status is Status.PENDING
    assert not world.row(subject.id)["woken"]
    assert calls(world, subject.id) == {"call-1": "requested"}
    assert world.do(machine.sleep, world.claim(subject.id), deadline_seconds=60).status is (
        Status.SLEEPING
    ), "one wake-up wakes once"


def test_a_chat_sleeps_on_until_the_last_outside_call_is_answered(world: World) -> None:
    subject = asking(world, external(1), external(2))
    world.do(machine.sleep, subject.held, deadline_seconds=60)
    first = world.do(machine.wake, subject.id, found(2))
    assert (first.status, first.dispatch, first.changed) == (Status.SLEEPING, None, True)
    assert len(history(world, subject.id)) == 2
    last = world.do(machine.wake, subject.id, found(1))
    assert last.status is Status.PENDING
    assert history(world, subject.id)[-1] == "tool: call-1=found 1 call-2=found 2"


def test_a_bare_wake_up_wakes_a_chat_whatever_is_open(world: World) -> None:
    subject = asking(world, external(1), external(2))
    world.do(machine.sleep, subject.held, deadline_seconds=60)
    effects = world.do(machine.wake, subject.id)
    assert effects.status is Status.PENDING
    assert calls(world, subject.id) == {"call-1": "requested", "call-2": "requested"}


def test_a_repeated_or_foreign_wake_up_changes_nothing(world: World) -> None:
    subject = asking(world, external(1), external(2))
    world.do(machine.sleep, subject.held, deadline_seconds=60)
    world.do(machine.wake, subject.id, found(1))
    before = world.dump()
    for result in (found(1), ToolResult("call-1", "another answer"), found(9)):
        effects = world.do(machine.wake, subject.id, result)
        assert (effects.changed, effects.dispatch, effects.events) == (False, None, ())
    assert world.dump() == before


def test_a_callback_answers_outside_calls_only(world: World) -> None:
    subject = asking(world, CLIENT, external(2))
    world.do(machine.require_action, subject.held, deadline_seconds=60)
    assert not world.do(machine.wake, subject.id, found(1)).changed
    assert world.do(machine.wake, subject.id, found(2)).status is Status.REQUIRES_ACTION
    world.do(machine.submit_results, subject.id, [found(1)])
    assert history(world, subject.id)[-1] == "tool: call-1=found 1 call-2=found 2"


def test_a_result_that_comes_after_a_failure_is_there_for_the_retry(world: World) -> None:
    subject = asking(world, external(1))
    world.do(machine.fail, subject.held, BOOM)
    assert world.do(machine.wake, subject.id, found(1)).status is Status.ERROR
    world.do(machine.retry, subject.id)
    assert history(world, subject.id)[-1] == "tool: call-1=found 1"


def test_a_crash_leaves_the_outcome_of_started_calls_unknown_and_repeats_idempotent_ones(
    world: World,
) -> None:
    subject = asking(world, LOCAL, AGAIN, LOCAL, start=(1, 2))
    world.do(machine.recover, subject.id, subject.held.lease_id)
    assert calls(world, subject.id) == {
        "call-1": "unknown",
        "call-2": "requested",
        "call-3": "requested",
    }
    assert len(history(world, subject.id)) == 2, "settled only when all are answered"
    fence = world.do(machine.start_tools, world.claim(subject.id), ["call-2", "call-3"]).fence
    world.do(machine.commit, fence, results=[found(3), found(2)])
    assert history(world, subject.id)[-1] == (
        f"tool: call-1!{texts.UNKNOWN} call-2=found 2 call-3=found 3"
    )


def test_a_crash_in_the_last_open_call_settles_all_of_them(world: World) -> None:
    subject = asking(world, LOCAL, start=(1,))
    effects = world.do(machine.recover, subject.id, subject.held.lease_id)
    assert calls(world, subject.id) == {"call-1": "unknown settled"}
    assert history(world, subject.id)[-1] == f"tool: call-1!{texts.UNKNOWN}"
    assert len(effects.message_ids) == 1


def test_a_shutdown_keeps_the_results_there_are(world: World) -> None:
    subject = asking(world, LOCAL, LOCAL, AGAIN, start=(1, 2, 3))
    world.do(machine.release, subject.held, results=[found(1)])
    assert calls(world, subject.id) == {
        "call-1": "finished",
        "call-2": "unknown",
        "call-3": "requested",
    }


def test_a_start_whose_answer_was_lost_can_be_repeated(world: World) -> None:
    subject = asking(world, LOCAL, LOCAL)
    for _ in range(2):
        world.do(machine.start_tools, subject.held, ["call-1", "call-2"])
    assert calls(world, subject.id) == {"call-1": "started", "call-2": "started"}


def test_a_call_that_nobody_asked_for_is_not_started(world: World) -> None:
    subject = asking(world, LOCAL, LOCAL, start=(1,))
    before = world.dump()
    with pytest.raises(Rejected, match="No open tool call has the id 'call-9'"):
        world.do(machine.start_tools, subject.held, ["call-9"])
    assert world.dump() == before


def test_a_result_is_given_once(world: World) -> None:
    subject = asking(world, LOCAL, external(2), start=(1,))
    world.do(machine.sleep, subject.held, deadline_seconds=60, results=[found(1)])
    world.do(machine.wake, subject.id)
    fence = world.claim(subject.id)
    before = world.dump()
    with pytest.raises(Rejected, match="has its result already"):
        world.do(machine.commit, fence, results=[found(1)])
    assert world.dump() == before


def test_calls_that_the_provider_executes_are_never_open(world: World) -> None:
    subject = world.running()
    searched = ToolCall("call-1", "web_search", {"q": "x"}, provider_executed=True)
    effects = world.do(machine.finish_turn, subject.held, message=said("Found it.", searched))
    assert effects.status is Status.WAITING
    assert calls(world, subject.id) == {}


def test_a_turn_does_not_end_while_calls_are_open(world: World) -> None:
    subject = asking(world, LOCAL)
    before = world.dump()
    with pytest.raises(Rejected, match="answer them, and commit"):
        world.do(machine.finish_turn, subject.held, message=said("Done."))
    assert world.dump() == before
    other = world.running()
    with pytest.raises(Rejected, match="answer them, and commit"):
        world.do(machine.finish_turn, other.held, message=said("Hm.", call()))


def test_an_assistant_does_not_ask_again_while_calls_are_open(world: World) -> None:
    subject = asking(world, LOCAL)
    before = world.dump()
    with pytest.raises(Rejected, match="answer those first"):
        world.do(machine.record, subject.held, said("And this.", call("call-2")))
    assert world.dump() == before


def test_a_step_may_answer_old_calls_and_ask_for_new_ones_in_one_commit(world: World) -> None:
    subject = asking(world, LOCAL, start=(1,))
    message = said("And this.", call("call-2"))
    world.do(machine.commit, subject.held, results=[found(1)], message=message)
    assert history(world, subject.id)[2:] == [
        "tool: call-1=found 1",
        "assistant: And this. [call-2]",
    ]
    assert calls(world, subject.id) == {"call-1": "finished settled", "call-2": "requested"}


def test_a_call_id_that_is_used_twice_in_one_message_is_refused(world: World) -> None:
    subject = world.running()
    before = world.dump()
    with pytest.raises(Rejected):
        world.do(machine.record, subject.held, said("Twice.", call("same"), call("same")))
    assert world.dump() == before


def test_a_chat_is_not_parked_for_an_answer_that_nobody_owes(world: World) -> None:
    subject = asking(world, LOCAL)
    before = world.dump()
    with pytest.raises(Rejected, match="commit, instead of parking"):
        world.do(machine.require_action, subject.held, deadline_seconds=60)
    assert world.dump() == before
    slept = world.do(machine.sleep, subject.held, deadline_seconds=60)
    assert slept.status is Status.PENDING


def test_a_deadline_that_has_not_passed_expires_nothing(world: World) -> None:
    subject = world.chat(Status.SLEEPING)
    before = world.dump()
    with pytest.raises(Stale, match="has not passed"):
        world.do(machine.expire, subject.id)
    assert world.dump() == before


def test_a_passed_deadline_answers_what_is_open_and_keeps_what_has_come(world: World) -> None:
    subject = asking(world, external(1), external(2))
    world.do(machine.sleep, subject.held, deadline_seconds=60)
    world.do(machine.wake, subject.id, found(1))
    sql(world, "UPDATE rejoinder.chats SET deadline = clock_timestamp()")
    sql(world, "UPDATE rejoinder.tool_calls SET deadline = clock_timestamp()")
    effects = world.do(machine.expire, subject.id)
    assert history(world, subject.id)[-1] == (f"tool: call-1=found 1 call-2!{texts.TIMED_OUT}")
    assert effects.abandoned == ("task-2",)


def test_a_stop_says_which_outside_tasks_nobody_waits_for_any_more(world: World) -> None:
    subject = asking(world, external(1), LOCAL, external(3), start=(2,))
    world.do(machine.interrupt, subject.id)
    effects = world.do(machine.finish_interrupt, subject.held, results=[found(1)])
    assert effects.abandoned == ("task-3",)
    assert history(world, subject.id)[-1] == (
        f"tool: call-1=found 1"
        f" call-2!{texts.INTERRUPTED} It had started; what it did until then is unknown."
        f" call-3!{texts.INTERRUPTED}"
    )


def test_a_message_to_a_failed_chat_comes_after_the_results_of_its_open_calls(
    world: World,
) -> None:
    subject = asking(world, external(1))
    world.do(machine.fail, subject.held, BOOM)
    effects = world.do(machine.send, subject.id, words("go on"))
    assert history(world, subject.id)[2:] == [
        f"tool: call-1!{texts.SUPERSEDED}",
        "user: go on",
    ]
    assert effects.abandoned == ("task-1",)
