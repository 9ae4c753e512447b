"""A message to a chat at rest, without its lock: the same rows, and never on top of old news."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from models import claims, machine, snapshot
from models.engine import make_engine, transaction
from models.history import MOST_ALONG
from models.machine import at_rest
from rejoinder.core.errors import Rejected
from rejoinder.core.messages import Compaction, NewMessage, Role, Visibility, WhenBusy
from rejoinder.core.parts import Text
from rejoinder.core.state import AT_REST, Status
from tests.chats import BOOM, DEAD_AFTER, World, said, words
from tests.integration.invariants import assert_invariants
from tests.integration.racing import Order, track_for, tx
from tests.integration.test_owner import statements, told

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from sqlalchemy import Engine

SAYS = words("And \x00 then? \ud800")


@pytest.fixture
def world(engine: Engine) -> World:
    return World(engine)


def plan(engine: Engine, chat_id: UUID, **options: Any) -> at_rest.Planned | None:
    return at_rest.plan(engine, chat_id, lambda tx: machine.send(tx, chat_id, SAYS, **options))


def locked(world: World, chat_id: UUID, **options: Any) -> Any:
    with transaction(world.engine) as tx:
        return machine.send(tx, chat_id, SAYS, **options)


@pytest.mark.parametrize("status", sorted(AT_REST))
@pytest.mark.parametrize("model", [None, "scripted:other"])
@pytest.mark.parametrize("when_busy", [w for w in WhenBusy if w is not WhenBusy.INTERRUPT])
def test_rows_and_events_are_the_same_with_and_without_the_lock(
    world: World, status: Status, model: str | None, when_busy: WhenBusy
) -> None:
    one, other = world.chat(status), world.chat(status)
    planned = plan(world.engine, one.id, model=model, when_busy=when_busy)
    assert planned is not None
    assert planned.write(world.engine)
    under_the_lock = locked(world, other.id, model=model, when_busy=when_busy)
    assert told(world, one) == told(world, other)
    assert _kinds(planned.effects) == _kinds(under_the_lock)


def _kinds(effects: Any) -> Any:
    return [(event.kind, sorted(event.data)) for event in effects.events], effects.snapshot_version


def test_a_message_to_a_chat_at_rest_says_two_things_to_the_database(world: World) -> None:
    with statements(world.engine) as heard:
        world.do(machine.send, world.chat(Status.WAITING).id, SAYS)  # prepares
        chat = world.chat(Status.WAITING)
        heard.clear()
        planned = plan(world.engine, chat.id)
        assert planned is not None
        assert planned.write(world.engine)
    assert [statement.split()[0] for statement in heard] == ["EXECUTE"] * 2


@pytest.mark.parametrize("between", ["send", "archive", "set_labels", "retry"])
def test_whatever_comes_in_between_is_not_overwritten(world: World, between: str) -> None:
    chat = world.chat(Status.WAITING)
    planned = plan(world.engine, chat.id)
    assert planned is not None
    with transaction(world.engine) as tx:
        acts: dict[str, Callable[[], object]] = {
            "send": partial(machine.send, tx, chat.id, words("First.")),
            "archive": partial(machine.archive, tx, chat.id),
            "set_labels": partial(machine.set_labels, tx, chat.id, {"colour": "red"}),
            "retry": partial(machine.retry, tx, chat.id),
        }
        acts[between]()
    before = world.dump()
    assert not planned.write(world.engine)
    assert world.dump() == before


def test_who_waits_for_another_sees_what_that_one_did(engine: Engine) -> None:
    with track_for(engine, Order.LEFT) as track:
        world = track.world
        chat = world.chat(Status.WAITING)
        planned = plan(engine, chat.id)
        assert planned is not None
        got = track.race(tx(machine.send, chat.id, words("First.")), planned.write)
    assert got.waited
    assert got.right is False
    assert_invariants(engine)


def test_a_lock_that_is_held_for_long_is_no_word_about_what_was_stored(
    world: World, database_url: str
) -> None:
    chat = world.chat(Status.WAITING)
    impatient = make_engine(database_url, connect_args={"options": "-c lock_timeout=50"})
    planned = plan(impatient, chat.id)
    assert planned is not None
    with transaction(world.engine) as tx:
        machine.set_labels(tx, chat.id, {"colour": "red"})
        assert not planned.write(impatient)
    impatient.dispose()


@pytest.mark.parametrize("status", [each for each in Status if each not in AT_REST])
def test_of_a_busy_chat_nothing_is_planned(world: World, status: Status) -> None:
    assert plan(world.engine, world.chat(status).id) is None


def test_nothing_is_planned_where_more_than_a_message_follows(world: World) -> None:
    behind = world.chat(Status.ERROR, queued=1)
    archived = world.chat(Status.WAITING, archived=True)
    asked = world.asking()
    world.do(machine.fail, asked.held, BOOM, results=[])
    assert world.row(asked.id)["status"] == Status.ERROR
    assert [plan(world.engine, each.id) for each in (behind, archived, asked)] == [None] * 3


def test_a_refusal_is_left_to_the_row(world: World) -> None:
    chat = world.chat(Status.WAITING)
    assert at_rest.plan(world.engine, chat.id, lambda tx: machine.send(tx, chat.id, ())) is None
    with pytest.raises(Rejected):
        world.do(machine.send, chat.id, ())


# -- what is read along with a claim --------------------------------------------------------------


def claimed(engine: Engine, world: World, chat_id: UUID) -> claims.Claim:
    got = claims.claim(engine, chat_id, world.worker_id, dead_after=DEAD_AFTER)
    assert got is not None
    return got


def test_a_claim_tells_the_same_history_as_the_rows(world: World) -> None:
    system = (Text("Be \x00 kind. \ud800"),)
    chat = world.new("One \x00?", system=system)
    notice = NewMessage(Role.ASSISTANT, words("Nobody shows this to a model."), Visibility.USER)
    world.do(machine.finish_turn, world.claim(chat.id), message=said("Two."), notice=notice)
    world.do(machine.send, chat.id, words("Three?"))
    got = claimed(world.engine, world, chat.id)
    with transaction(world.engine) as tx:
        read = snapshot.load(tx, chat.id, got.turn_id).snapshot.history
    assert snapshot.told_along(got) == read
    assert [entry.role for entry in read] == [Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.USER]


def test_a_claim_tells_what_stands_behind_the_newest_boundary(world: World) -> None:
    chat = world.new("One?", system=words("Be kind."))
    world.do(machine.finish_turn, world.claim(chat.id), message=said("Two."))
    world.do(machine.request_compaction, chat.id)
    fence = world.claim(chat.id)
    summary = NewMessage(Role.USER, words("So far."), Visibility.MODEL, compressed=True)
    marker = NewMessage(Role.ASSISTANT, words("Shorter now."), Visibility.USER, compressed=True)
    world.do(machine.store_compaction, fence, Compaction(summary, marker))
    world.do(machine.send, chat.id, words("Three?"))
    got = claimed(world.engine, world, chat.id)
    with transaction(world.engine) as tx:
        read = snapshot.load(tx, chat.id, got.turn_id).snapshot.history
    assert snapshot.told_along(got) == read
    assert [entry.role for entry in read] == [Role.SYSTEM, Role.USER, Role.USER]


def test_a_long_history_is_not_read_along(world: World) -> None:
    chat = world.new()
    with transaction(world.engine) as tx:
        machine.interrupt(tx, chat.id)
    for _ in range(MOST_ALONG):
        world.do(machine.send, chat.id, words("again"))
        world.do(machine.interrupt, chat.id)
    world.do(machine.send, chat.id, words("last"))
    assert snapshot.told_along(claimed(world.engine, world, chat.id)) is None


def test_a_later_step_reads_no_history_along(world: World) -> None:
    chat = world.running()
    world.do(machine.commit, chat.held, message=said("So far."))
    assert claimed(world.engine, world, chat.id).history is None


def test_a_claim_that_waited_for_somebody_tells_no_old_history(engine: Engine) -> None:
    with track_for(engine, Order.LEFT) as track:
        world = track.world
        chat = world.new()
        steer = partial(machine.send, when_busy=WhenBusy.STEER)
        got = track.race(
            tx(steer, chat.id, words("And that?")), lambda own: claimed(own, world, chat.id)
        )
    assert got.waited
    assert got.right.history is None
    assert_invariants(engine)
