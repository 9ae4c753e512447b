"""A turn that gives way to another stops all who work for it, in one transaction, root first."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from models import machine
from models.engine import transaction
from models.machine import keys
from rejoinder.core.messages import Budget, WhenBusy
from tests.chats import Subject, World, said, words
from tests.integration.families import child_of, family, sleep, status
from tests.integration.invariants import assert_invariants
from tests.integration.racing import Order, Track, track_for
from tests.integration.reading import sql

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Engine
    from sqlalchemy.orm import Session

    from rejoinder.core.effects import Effects

    Operation = Callable[[Session], tuple[Effects, ...]]


@pytest.fixture
def world(engine: Engine) -> World:
    return World(engine)


@pytest.fixture(params=list(Order), ids=lambda order: order.value)
def track(engine: Engine, request: pytest.FixtureRequest) -> Iterator[Track]:
    with track_for(engine, request.param) as track:
        yield track


def operation(world: World, chat: Subject, how: str) -> Operation:
    """Something that may end a chat's turn, as the front door does it."""
    queued_id = 0
    if how == "promote":
        queued_id = world.do(machine.send, chat.id, words("Next.")).queued_id or 0
    (first, *_) = world.read(
        "SELECT id FROM rejoinder.messages WHERE chat_id = :id AND NOT deleted ORDER BY id",
        id=chat.id,
    )

    def act(tx: Session) -> tuple[Effects, ...]:
        match how:
            case "interrupt":
                return machine.interrupt_tree(tx, chat.id)
            case "budget":
                return machine.set_budget(tx, chat.id, Budget(tokens=9))
            case "send":
                return machine.supersede(
                    tx,
                    chat.id,
                    lambda: machine.send(tx, chat.id, words("Next."), when_busy=WhenBusy.INTERRUPT),
                )
            case "edit":
                return machine.supersede(
                    tx, chat.id, lambda: machine.edit(tx, chat.id, first["id"], words("Next."))
                )
            case _:
                return machine.supersede(
                    tx, chat.id, lambda: machine.promote_queued(tx, chat.id, queued_id)
                )

    return act


@pytest.mark.parametrize("how", ["interrupt", "send", "edit", "promote"])
@pytest.mark.parametrize("asleep", [True, False], ids=["asleep", "running"])
def test_a_turn_that_gives_way_stops_all_below(world: World, how: str, *, asleep: bool) -> None:
    parent, (child,) = family(world)
    grandchild = child_of(world, child.id)
    idle = world.new(parent_id=child.id)
    world.do(machine.interrupt, idle.id)
    if asleep:
        sleep(world.engine, parent)
    effects = world.transact(operation(world, parent, how))
    assert effects[0].chat_id == parent.id
    assert {each.chat_id for each in effects[1:]} == {child.id, grandchild.id}
    assert all(each.hints for each in effects[1:]), "their owners are told"
    assert status(world, child, grandchild, idle) == ["interrupting", "interrupting", "waiting"]
    assert_invariants(world.engine)


def test_a_message_to_a_chat_at_rest_stops_nobody_but_an_edit_does(world: World) -> None:
    parent = world.running()
    child = child_of(world, parent.id)
    world.do(machine.finish_turn, parent.held, message=said("They go on."))
    world.transact(operation(world, parent, "send"))
    assert status(world, parent, child) == ["pending", "running"]
    world.transact(operation(world, parent, "edit"))
    assert status(world, parent, child) == ["pending", "interrupting"], "its errand is gone"


def test_a_repeated_message_stops_nobody(world: World) -> None:
    parent = world.running()
    stop = WhenBusy.INTERRUPT

    def send(tx: Session) -> tuple[Effects, ...]:
        say = partial(machine.send, tx, parent.id, words("Next."), when_busy=stop)
        return keys.once(tx, "owner", "k", "", lambda: machine.supersede(tx, parent.id, say))

    world.transact(send)
    child = world.new(parent_id=parent.id)
    assert len(world.transact(send)) == 1
    assert status(world, child) == ["pending"]


@pytest.mark.parametrize(
    ("above", "below"),
    [
        ("interrupt", "interrupt"),
        ("send", "edit"),
        ("edit", "promote"),
        ("promote", "send"),
        ("budget", "interrupt"),
    ],
)
def test_two_operations_on_one_tree_never_wait_in_a_circle(
    track: Track, above: str, below: str
) -> None:
    """One at the root, one in the middle, and a leaf whose id is lower than the middle's.

    So whoever begins at the root comes to the leaf before the middle, and the other one to the
    middle first: without the root's lock they would wait for each other.
    """
    world = track.world
    for _ in track.rounds():
        root = world.running()
        leaf = child_of(world, root.id)
        middle = child_of(world, root.id)
        sql(
            world,
            "UPDATE rejoinder.chats SET parent_id = :middle WHERE id = :id",
            middle=middle.id,
            id=leaf.id,
        )
        first, second = operation(world, root, above), operation(world, middle, below)
        track.race(_on(first), _on(second))
        assert status(world, leaf) == ["interrupting"]


def _on(act: Operation) -> Callable[[Engine], Any]:
    def run(engine: Engine) -> Any:
        with transaction(engine) as tx:
            return act(tx)

    return run
