"""Budgets in the rows: who parks, who goes on when more is allowed, and who gives up."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from models import machine, snapshot, trees
from models.engine import transaction
from rejoinder.core.errors import Rejected, Stale
from rejoinder.core.messages import Budget, NewMessage, Role, TitleSource, Usage, Used, WhenBusy
from rejoinder.core.parts import Text, ToolResult
from rejoinder.core.state import Status
from tests.chats import BOOM, Subject, World, words
from tests.integration.invariants import assert_invariants
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from sqlalchemy import Engine

    from rejoinder.core.effects import Effects

SMALL = Budget(tokens=100)
LARGE = Budget(tokens=100_000)
COST = Usage(10, 20, 30, 40, 5)


@pytest.fixture
def world(engine: Engine) -> Iterator[World]:
    yield World(engine)
    assert_invariants(engine)


def answer(cost_micros: int | None = 7, runtime_ms: int = 50) -> NewMessage:
    return NewMessage(
        Role.ASSISTANT,
        (Text("Well."),),
        model="scripted:x",
        usage=COST,
        cost_micros=cost_micros,
        runtime_ms=runtime_ms,
    )


def park(world: World, chat_id: UUID, budget: Budget, seconds: float = 300) -> Effects:
    return world.do(
        machine.exceed_budget,
        world.claim(chat_id),
        budget=budget,
        deadline_seconds=seconds,
        spent={"spent": {}},
    )


def parked(world: World, seconds: float = 300) -> Subject:
    root = world.new(budget=SMALL)
    park(world, root.id, SMALL, seconds)
    return root


def set_budget(world: World, chat_id: UUID, budget: Budget) -> dict[UUID, Effects]:
    with transaction(world.engine) as tx:
        return {each.chat_id: each for each in machine.set_budget(tx, chat_id, budget)}


def status(world: World, chat_id: UUID) -> tuple[Status, Any]:
    row = world.row(chat_id)
    return Status(row["status"]), row["action"]


def test_a_parked_chat_goes_on_when_its_budget_is_raised(world: World) -> None:
    root = parked(world)
    assert status(world, root.id) == (Status.REQUIRES_ACTION, "budget")
    effects = set_budget(world, root.id, LARGE)[root.id]
    assert effects.dispatch is not None, "nobody has to ring for it"
    assert status(world, root.id) == (Status.PENDING, None)
    assert world.row(root.id)["deadline"] is None


def test_children_that_wait_for_the_same_budget_go_on_with_it(world: World) -> None:
    root = world.new(budget=SMALL)
    child = world.new(parent_id=root.id)
    grandchild = world.new(parent_id=child.id)
    busy = world.new(parent_id=root.id)
    stranger = parked(world)
    for each in (root, child, grandchild):
        park(world, each.id, SMALL)
    effects = set_budget(world, root.id, LARGE)
    went_on = {chat_id for chat_id, each in effects.items() if each.dispatch}
    assert went_on == {root.id, child.id, grandchild.id}
    assert status(world, busy.id)[0] is Status.PENDING
    assert status(world, stranger.id)[0] is Status.REQUIRES_ACTION


def test_a_chat_that_waits_for_something_else_stays_where_it_is(world: World) -> None:
    asking = world.chat(Status.REQUIRES_ACTION)
    assert set_budget(world, asking.id, LARGE)[asking.id].dispatch is None
    assert status(world, asking.id) == (Status.REQUIRES_ACTION, "calls")


def test_a_childs_budget_is_its_roots(world: World) -> None:
    root = world.new(budget=SMALL)
    child = world.new(parent_id=root.id)
    before = world.dump()
    with pytest.raises(Rejected, match=str(root.id)):
        set_budget(world, child.id, LARGE)
    with pytest.raises(Rejected):
        world.new(parent_id=root.id, budget=LARGE)
    assert world.dump() == before
    fence = world.claim(child.id)
    with transaction(world.engine) as tx:
        loaded = snapshot.load(tx, child.id, world.row(child.id)["turn_id"])
    assert loaded.budget == SMALL
    world.do(machine.finish_turn, fence, message=answer())


def test_a_budget_that_was_raised_before_the_chat_parked_is_not_missed(world: World) -> None:
    root = world.new(budget=SMALL)
    child = world.new(parent_id=root.id)
    fences = {each.id: world.claim(each.id) for each in (root, child)}  # both have seen SMALL
    set_budget(world, root.id, LARGE)
    for chat_id, fence in fences.items():
        effects = world.do(
            machine.exceed_budget, fence, budget=SMALL, deadline_seconds=300, spent={}
        )
        assert status(world, chat_id) == (Status.PENDING, None)
        assert effects.dispatch is not None, "it looks again at once"
        assert effects.events[-1].data["status"] == Status.PENDING


def test_a_child_that_parks_while_the_budget_is_raised_is_found_or_goes_on(world: World) -> None:
    """Whoever has the root's lock comes first; in neither order does the child wait for ever."""
    root = world.new(budget=SMALL)
    child = world.new(parent_id=root.id)
    fence = world.claim(child.id)
    with transaction(world.engine) as tx:
        machine.set_budget(tx, root.id, LARGE)  # has looked for parked children, not committed
        parking = threading.Thread(
            target=lambda: world.do(
                machine.exceed_budget, fence, budget=SMALL, deadline_seconds=300, spent={}
            )
        )
        parking.start()
        wait_until(lambda: waits_for_a_lock(world), what="the child waits for the root")
    parking.join(10)
    assert status(world, child.id) == (Status.PENDING, None)


def waits_for_a_lock(world: World) -> bool:
    with world.engine.connect() as connection:
        count = connection.execute(
            text(
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                " AND datname = current_database()"
            )
        ).scalar_one()
    return bool(count)


def test_nobody_raises_it_in_time(world: World) -> None:
    root = parked(world, seconds=-1)
    effects = world.do(machine.expire, root.id)
    row = world.row(root.id)
    assert (row["status"], row["last_error"]["kind"]) == ("error", "budget")
    (end,) = effects.ended
    assert end.error is not None
    assert end.error["kind"] == "budget"
    set_budget(world, root.id, LARGE)
    assert status(world, root.id)[0] is Status.ERROR, "that turn is over"
    world.do(machine.retry, root.id)
    assert status(world, root.id)[0] is Status.PENDING


def test_a_child_whose_budget_ran_out_for_good_wakes_its_parent(world: World) -> None:
    root = world.new(budget=SMALL)
    child = world.new(parent_id=root.id)
    park(world, child.id, SMALL, seconds=-1)
    assert world.do(machine.expire, child.id).wake == root.id


def test_the_deadline_of_a_budget_has_to_pass_first(world: World) -> None:
    root = parked(world)
    with pytest.raises(Stale):
        world.do(machine.expire, root.id)


def test_a_parked_chat_can_be_stopped_answered_and_edited(world: World) -> None:
    stopped = parked(world)
    world.do(machine.interrupt, stopped.id)
    assert status(world, stopped.id) == (Status.WAITING, None)

    queued = parked(world)
    world.do(machine.send, queued.id, words("and?"))
    assert status(world, queued.id) == (Status.REQUIRES_ACTION, "budget")
    assert world.row(queued.id)["queue_length"] == 1
    world.do(machine.interrupt, queued.id)
    assert status(world, queued.id) == (Status.PENDING, None), "the next message has its turn"

    interrupted = parked(world)
    world.do(machine.send, interrupted.id, words("No, this."), when_busy=WhenBusy.INTERRUPT)
    assert status(world, interrupted.id) == (Status.PENDING, None)

    edited = parked(world)
    (first,) = world.read(
        "SELECT id FROM rejoinder.messages WHERE chat_id = :id AND role = 'user'", id=edited.id
    )
    world.do(machine.edit, edited.id, first["id"], words("Something cheaper."))
    assert status(world, edited.id) == (Status.PENDING, None)


def test_a_parked_chat_takes_no_results_and_no_approvals(world: World) -> None:
    root = parked(world)
    before = world.dump()
    with pytest.raises(Rejected):
        world.do(machine.submit_results, root.id, [ToolResult("call-1", "yes")])
    with pytest.raises(Rejected):
        world.do(machine.approve, root.id, approved=True)
    assert world.dump() == before


def test_a_tree_has_used_what_its_chats_have(world: World) -> None:
    root = world.new(budget=SMALL)
    child = world.new(parent_id=root.id)
    world.do(machine.finish_turn, world.claim(child.id), message=answer())
    world.do(machine.commit, world.claim(root.id), message=answer(cost_micros=None))
    fence = world.claim(root.id)
    with transaction(world.engine) as tx:
        assert trees.used(tx, root.id) == Used(2, 20, 40, 60, 80, 10, 7, 1, 100)
        loaded = snapshot.load(tx, root.id, world.row(root.id)["turn_id"])
    assert loaded.used.tokens == 200
    world.do(machine.release, fence)


def test_an_edit_gives_nothing_back(world: World) -> None:
    root = world.new()
    world.do(machine.finish_turn, world.claim(root.id), message=answer())
    (first,) = world.read("SELECT id FROM rejoinder.messages WHERE role = 'user'")
    world.do(machine.edit, root.id, first["id"], words("Again."))
    assert world.row(root.id)["used_calls"] == 1


def test_a_notice_of_ours_is_no_model_call(world: World) -> None:
    root = world.new()
    notice = NewMessage(Role.ASSISTANT, (Text("Stopped after 30 steps."),))
    world.do(machine.finish_turn, world.claim(root.id), message=notice)
    row = world.row(root.id)
    assert (row["used_calls"], row["used_unpriced"]) == (0, 0)


def test_a_models_title_never_replaces_a_persons_but_its_call_is_counted(world: World) -> None:
    root = world.new()
    call = answer()
    fence = world.claim(root.id)
    told = world.do(machine.set_title, root.id, "By a model", TitleSource.MODEL, call=call)
    assert [event.data for event in told.events] == [{"title": "By a model", "source": "model"}]
    world.do(machine.set_title, root.id, "By me", TitleSource.USER)
    late = world.do(machine.set_title, root.id, "Again", TitleSource.MODEL, call=call)
    assert not late.events
    row = world.row(root.id)
    assert (row["title"], row["title_source"], row["used_calls"]) == ("By me", "user", 2)
    world.do(machine.finish_turn, fence, message=answer())  # the fence of the turn still holds


def test_a_call_is_counted_also_if_its_answer_is_not_kept(world: World) -> None:
    root = world.new()
    world.do(
        machine.retry_later, world.claim(root.id), delay_seconds=0, retry_state={}, lost=answer()
    )
    world.do(machine.release, world.claim(root.id), partial=answer())
    fence = world.claim(root.id)
    world.do(machine.interrupt, root.id)
    world.do(machine.finish_interrupt, fence, partial=replace(answer(), parts=()))
    world.do(machine.send, root.id, words("Again."))
    world.do(machine.fail, world.claim(root.id), BOOM, lost=answer())
    row = world.row(root.id)
    assert (row["used_calls"], row["used_input"], row["used_micros"]) == (4, 40, 28)
    assert row["used_ms"] == 0, "nobody had anything of that time"
    roles = world.read("SELECT role FROM rejoinder.messages ORDER BY id")
    assert [each["role"] for each in roles] == ["user", "user"]
