"""Chats that wait for those below them: no wake-up is lost, no limit and no stop is slipped by."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from uuid_utils.compat import uuid7

from models import claims, machine, snapshot, trees
from models.engine import transaction
from models.machine import Caller, Errand, Limits
from models.sweep import sweep
from rejoinder.core.errors import Rejected
from rejoinder.core.parts import Text
from rejoinder.core.state import Status
from tasks import agents
from tests.chats import BOOM, DEAD_AFTER, Subject, World, said, words
from tests.integration.families import child_of, family, rest, sleep, status, waits
from tests.integration.invariants import assert_invariants
from tests.integration.racing import Order, Track, refused, track_for, tx
from tests.integration.reading import sql

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from uuid import UUID

    from sqlalchemy import Engine

    from rejoinder.core.effects import Effects

LIMITS = Limits(depth=1, at_once=3, total=5)
TOLD = Text("You are a delegate.")


@pytest.fixture
def world(engine: Engine) -> World:
    return World(engine)


@pytest.fixture(params=list(Order), ids=lambda order: order.value)
def track(engine: Engine, request: pytest.FixtureRequest) -> Iterator[Track]:
    with track_for(engine, request.param) as track:
        yield track


class Looking:
    """What a step has of a runtime when it looks at children."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine


def look(world: World, parent: Subject) -> list[Any]:
    """The results that a step would find for the calls of this chat."""
    turn_id = world.row(parent.id)["turn_id"]
    with transaction(world.engine) as session:
        loaded = snapshot.load(session, parent.id, turn_id)
    return agents.answers(Looking(world.engine), loaded.snapshot.calls, 10_000)  # type: ignore[arg-type]


def swept(world: World) -> list[UUID]:
    return [each.chat_id for each in sweep(world.engine, dead_after=DEAD_AFTER).effects]


# -- waking ---------------------------------------------------------------------------------------


def test_a_child_that_rests_while_its_parent_falls_asleep_is_always_heard(track: Track) -> None:
    world = track.world
    for _ in track.rounds():
        parent, (child,) = family(world)
        assert look(world, parent) == [], "it looked, and the child was busy"
        fence = child.held
        with transaction(world.engine) as session:
            wakes = machine.finish_turn(session, fence, message=said("Done.")).wake
        assert wakes == parent.id
        track.race(lambda engine: sleep(engine, parent), tx(machine.wake, parent.id))  # noqa: B023
        row = world.row(parent.id)
        assert (row["status"], row["woken"]) == ("pending", False)
        world.claim(parent.id)
        (result,) = look(world, parent)
        assert '"report": "Done."' in result.content


@pytest.mark.parametrize("last", [0, 1])
def test_the_last_of_several_children_wakes_their_parent(world: World, last: int) -> None:
    parent, children = family(world, 2)
    sleep(world.engine, parent)
    assert not rest(world.engine, children[1 - last]).changed
    assert status(world, parent) == ["sleeping"]
    assert rest(world.engine, children[last]).dispatch is not None
    assert status(world, parent) == ["pending"]
    assert_invariants(world.engine)


def test_one_of_several_waits_is_answered_while_another_goes_on(world: World) -> None:
    parent, (one, two) = family(world, 2, together=False)
    sleep(world.engine, parent)
    rest(world.engine, two)
    parent.fence = world.claim(parent.id)
    (result,) = look(world, parent)
    assert result.call_id == "wait-1"
    world.do(machine.sleep, parent.held, deadline_seconds=300, results=[result])
    assert status(world, parent) == ["sleeping"]
    rest(world.engine, one)
    assert status(world, parent) == ["pending"]
    assert_invariants(world.engine)


def test_two_children_that_rest_at_once_wake_their_parent(track: Track) -> None:
    world = track.world
    for _ in track.rounds():
        parent, (one, two) = family(world, 2)
        sleep(world.engine, parent)
        for child in (one, two):  # both commit, and then both say so
            world.do(machine.finish_turn, child.held, message=said("Done."))
        track.race(tx(machine.wake, parent.id), tx(machine.wake, parent.id))
        assert status(world, parent) == ["pending"]


def _finished(world: World, child: Subject) -> None:
    world.do(machine.finish_turn, child.held, message=said("Done."))


def _failed(world: World, child: Subject) -> None:
    world.do(machine.fail, child.held, BOOM)


def _interrupted(world: World, child: Subject) -> None:
    world.do(machine.interrupt, child.id)
    world.do(machine.finish_interrupt, child.held)


def _recovered(world: World, child: Subject) -> None:
    sql(world, "UPDATE rejoinder.chats SET crashes = 2 WHERE id = :id", id=child.id)
    world.do(machine.recover, child.id, child.held.lease_id)


def _archived(world: World, child: Subject) -> None:
    _finished(world, child)
    sql(world, "UPDATE rejoinder.chats SET archived = true WHERE id = :id", id=child.id)


def _deleted(world: World, child: Subject) -> None:
    sql(world, "DELETE FROM rejoinder.chats WHERE id = :id", id=child.id)


ENDS = [_finished, _failed, _interrupted, _recovered, _archived, _deleted]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_a_parent_whose_wake_up_was_lost_is_woken_by_the_sweep(
    world: World, end: Callable[[World, Subject], None]
) -> None:
    parent, (child, other) = family(world, 2)
    sleep(world.engine, parent)
    end(world, child)  # and nobody hears of it: its effects are dropped
    assert swept(world) == [], "the other one is busy"
    end(world, other)
    assert swept(world) == [parent.id]
    assert status(world, parent) == ["pending"]
    assert swept(world) == [], "once"
    world.claim(parent.id)
    (result,) = look(world, parent)
    assert str(child.id) in result.content


def test_the_sweep_leaves_alone_who_sleeps_for_something_else(world: World) -> None:
    world.chat(Status.SLEEPING)
    parent, (child,) = family(world)
    sleep(world.engine, parent)
    assert swept(world) == []
    world.do(machine.finish_turn, child.held, message=said("Done."))
    world.do(machine.send, child.id, words("More."))
    assert swept(world) == [], "it is busy again"


def test_a_parent_that_has_waited_long_enough_looks_once_more(world: World) -> None:
    parent, (child,) = family(world)
    sleep(world.engine, parent)
    past = "SET deadline = deadline - interval '1 hour'"
    sql(world, f"UPDATE rejoinder.chats {past} WHERE id = :id", id=parent.id)
    sql(world, f"UPDATE rejoinder.tool_calls {past} WHERE chat_id = :id", id=parent.id)
    assert swept(world) == [parent.id]
    parent.fence = world.claim(parent.id)
    (result,) = look(world, parent)
    assert '"timed_out": true' in result.content
    assert status(world, child) == ["running"]
    done = world.do(machine.sleep, parent.held, deadline_seconds=300, results=[result])
    assert done.status is Status.PENDING
    assert_invariants(world.engine)


def test_a_sleeping_parent_is_a_possible_one(world: World) -> None:
    parent, _ = family(world)
    sleep(world.engine, parent)
    assert not world.do(machine.reconcile, parent.id).changed


# -- spawning -------------------------------------------------------------------------------------


def caller(world: World, chat: Subject, key: str = "key") -> Caller:
    return Caller(chat.id, world.row(chat.id)["turn_id"], key)


def spawn(world: World, chat: Subject, key: str = "key", limits: Limits = LIMITS) -> Effects:
    return world.do(machine.spawn, caller(world, chat, key), Errand("Go.", TOLD), limits)


def test_a_repeated_spawn_gives_the_same_child_however_full_the_tree_is(world: World) -> None:
    parent = world.running()
    first = spawn(world, parent)
    again = spawn(world, parent, limits=Limits(1, 1, 1))
    assert (again.chat_id, again.turn_id, again.dispatch) == (first.chat_id, first.turn_id, None)
    sql(world, "UPDATE rejoinder.chats SET model = 'another' WHERE id = :id", id=parent.id)
    assert spawn(world, parent).chat_id == first.chat_id


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (Limits(1, 2, 9), "2 agents of one chat"),
        (Limits(1, 9, 3), "3 chats already"),
    ],
)
def test_a_tree_does_not_outgrow_its_limits(world: World, limits: Limits, why: str) -> None:
    parent = world.running()
    for key in "ab":
        spawn(world, parent, key, limits)
    before = world.dump()
    with pytest.raises(Rejected, match=why):
        spawn(world, parent, "c", limits)
    assert world.dump() == before


def test_agents_do_not_start_agents_deeper_than_allowed(world: World) -> None:
    parent = world.running()
    child = Subject(spawn(world, parent).chat_id)
    world.claim(child.id)
    with pytest.raises(Rejected, match="1 deep already"):
        spawn(world, child, "deeper")
    assert spawn(world, child, "deeper", Limits(2, 3, 5)).changed


def test_what_a_child_is_told_is_told_once(world: World) -> None:
    parent = world.new(system=words("Be kind."))
    world.claim(parent.id)
    deep = Limits(2, 3, 5)
    child = Subject(spawn(world, parent, limits=deep).chat_id)
    world.claim(child.id)
    grandchild = spawn(world, child, "again", deep).chat_id
    with transaction(world.engine) as session:
        for chat_id in (child.id, grandchild):
            assert trees.instructions(session, chat_id) == (Text("Be kind."), TOLD)


def test_two_spawns_at_once_do_not_exceed_a_limit(track: Track) -> None:
    world = track.world
    for _ in track.rounds():
        parent = world.running()
        one = Limits(depth=1, at_once=1, total=5)
        both = track.race(
            tx(machine.spawn, caller(world, parent, str(uuid7())), Errand("Go.", TOLD), one),
            tx(machine.spawn, caller(world, parent, str(uuid7())), Errand("Go.", TOLD), one),
        )
        assert [refused(each, Rejected) for each in (both.left, both.right)].count(True) == 1


def test_no_child_slips_into_a_tree_that_is_stopped(track: Track) -> None:
    world = track.world
    for _ in track.rounds():
        root = world.running()
        middle = child_of(world, root.id)
        deep = Limits(depth=2, at_once=3, total=5)
        asks = caller(world, middle, str(uuid7()))
        both = track.race(
            tx(machine.spawn, asks, Errand("Go.", TOLD), deep), tx(machine.interrupt_tree, root.id)
        )
        if refused(both.left, Rejected):
            continue
        assert world.row(both.left.chat_id)["status"] == "waiting", "born first, and stopped"


def test_messages_go_only_downwards(world: World) -> None:
    parent = world.running()
    child = child_of(world, parent.id)
    stranger = world.running()
    before = world.dump()
    for asks, to in ((child, parent), (parent, stranger), (parent, parent)):
        with pytest.raises(Rejected, match="No agent of yours"):
            world.do(machine.message_agent, caller(world, asks), to.id, words("Hi."), LIMITS)
    assert world.dump() == before


def test_a_message_is_sent_once_however_often_it_is_repeated(world: World) -> None:
    parent = world.running()
    child = child_of(world, parent.id)
    asks = caller(world, parent)
    for _ in range(2):
        world.do(machine.message_agent, asks, child.id, words("More."), LIMITS)
    assert world.row(child.id)["queue_length"] == 1


def test_a_circle_of_parents_ends_the_walk(world: World) -> None:
    root = world.running()
    one, two = child_of(world, root.id), child_of(world, root.id)
    swap = "UPDATE rejoinder.chats SET parent_id = :above WHERE id = :id"
    sql(world, swap, above=one.id, id=two.id)
    sql(world, swap, above=two.id, id=one.id)
    with transaction(world.engine) as session:
        assert trees.below(session, root.id, [one.id, two.id]) == set()
        assert trees.below(session, one.id, [one.id, two.id]) == {two.id}


def test_time_to_sleep_is_the_calls_own(world: World) -> None:
    parent = world.running()
    child = child_of(world, parent.id)
    waits(world, parent, (child.id,), seconds=7)
    world.do(machine.sleep, parent.held, deadline_seconds=300)
    (row,) = world.read(
        "SELECT deadline - updated_at AS left FROM rejoinder.chats WHERE id = :id", id=parent.id
    )
    assert row["left"] == timedelta(seconds=7)


def test_waits_over_finds_them_in_batches(world: World) -> None:
    parents = []
    for _ in range(3):
        parent, (child,) = family(world)
        sleep(world.engine, parent)
        world.do(machine.finish_turn, child.held, message=said("Done."))
        parents.append(parent.id)
    with transaction(world.engine) as session:
        assert len(claims.waits_over(session, limit=2)) == 2
        assert claims.waits_over(session, skip=parents) == []
    assert sorted(each for each in swept(world)) == sorted(parents)
