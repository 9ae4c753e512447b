"""Chats and their children: archived as a whole, born under a lock, and heard when they rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from uuid_utils.compat import uuid7

from models import machine
from models.engine import transaction
from models.machine import NewChat
from rejoinder.core.errors import Rejected
from rejoinder.core.state import Status
from tests.chats import BOOM, World, said, words
from tests.integration.reading import message_id, sql

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from sqlalchemy import Engine

    from rejoinder.core.effects import Effects


@pytest.fixture
def world(engine: Engine) -> World:
    return World(engine)


def at_rest(world: World, parent_id: UUID | None = None) -> UUID:
    subject = world.new(parent_id=parent_id)
    world.do(machine.finish_turn, world.claim(subject.id))
    return subject.id


def archive(world: World, chat_id: UUID) -> tuple[Effects, ...]:
    with transaction(world.engine) as tx:
        return machine.archive(tx, chat_id)


def unarchive(world: World, chat_id: UUID) -> tuple[Effects, ...]:
    with transaction(world.engine) as tx:
        return machine.unarchive(tx, chat_id)


def archived(world: World) -> set[UUID]:
    return {row["id"] for row in world.read("SELECT id FROM rejoinder.chats WHERE archived")}


def test_a_tree_is_archived_and_unarchived_as_a_whole(world: World) -> None:
    root = at_rest(world)
    child = at_rest(world, root)
    grandchild = at_rest(world, child)
    stranger = at_rest(world)
    assert world.row(grandchild)["root_id"] == root
    changed = archive(world, root)
    assert {each.chat_id for each in changed} == archived(world) == {root, child, grandchild}
    assert all(each.changed for each in changed)
    assert {event.data["archived"] for each in changed for event in each.events} == {True}
    assert {each.wake for each in changed} == {None}, "they rested before"
    back = unarchive(world, root)
    assert {each.chat_id for each in back if each.changed} == {root, child, grandchild}
    assert archived(world) == set()
    assert stranger not in {each.chat_id for each in (*changed, *back)}


@pytest.mark.parametrize("act", [archive, unarchive])
def test_a_child_is_not_archived_alone(world: World, act: Callable[[World, UUID], object]) -> None:
    root = at_rest(world)
    child = at_rest(world, root)
    before = world.dump()
    with pytest.raises(Rejected, match=str(root)):
        act(world, child)
    assert world.dump() == before


@pytest.mark.parametrize("busy", sorted(set(Status) - {Status.WAITING, Status.ERROR}))
def test_one_busy_chat_keeps_its_whole_tree_from_the_archive(world: World, busy: Status) -> None:
    root = at_rest(world)
    at_rest(world, root)
    subject = world.chat(busy)
    sql(
        world,
        "UPDATE rejoinder.chats SET parent_id = :root, root_id = :root WHERE id = :id",
        root=root,
        id=subject.id,
    )
    before = world.dump()
    with pytest.raises(Rejected, match=f"{subject.id} in it is {busy}"):
        archive(world, root)
    assert world.dump() == before


def test_a_failed_child_does_not_keep_its_tree_from_the_archive(world: World) -> None:
    root = at_rest(world)
    child = world.new(parent_id=root)
    world.do(machine.fail, world.claim(child.id), BOOM)
    archive(world, root)
    assert archived(world) == {root, child.id}


def test_members_that_are_archived_already_stay_so(world: World) -> None:
    root = at_rest(world)
    child = at_rest(world, root)
    sql(world, "UPDATE rejoinder.chats SET archived = true WHERE id = :id", id=child)
    before = world.row(child)
    of_root, of_child = archive(world, root)
    assert (of_root.changed, of_child.changed) == (True, False)
    assert world.row(child) == before
    assert archived(world) == {root, child}


def test_no_child_is_born_into_an_archived_tree(world: World) -> None:
    root = at_rest(world)
    child = at_rest(world, root)
    archive(world, root)
    before = world.dump()
    for parent_id in (root, child):
        with pytest.raises(Rejected, match="unarchive it first"):
            world.new(parent_id=parent_id)
    assert world.dump() == before


def test_a_parent_must_exist_and_have_the_same_owner(world: World) -> None:
    theirs = world.do(machine.create, NewChat("somebody else", words("hello"))).chat_id
    before = world.dump()
    for parent_id in (uuid7(), theirs):
        with pytest.raises(Rejected, match="existing chat as the parent"):
            world.new(parent_id=parent_id)
    assert world.dump() == before


def test_a_parent_is_told_when_its_child_comes_to_rest_and_only_then(world: World) -> None:
    root = at_rest(world)
    child = world.new(parent_id=root).id
    fence = world.claim(child)
    recorded = world.do(machine.record, fence, said("Hm."))
    assert recorded.wake is None
    assert world.do(machine.finish_turn, recorded.fence).wake == root
    assert world.do(machine.interrupt, child).wake is None, "it rests already"
    assert world.do(machine.send, child, words("more")).wake is None
    assert world.do(machine.interrupt, child).wake == root
    world.do(machine.retry, child)
    assert world.do(machine.fail, world.claim(child), BOOM).wake == root
    (first, *_) = world.read(
        "SELECT id FROM rejoinder.messages WHERE chat_id = :id ORDER BY id", id=child
    )
    assert world.do(machine.edit, child, first["id"], words("other")).wake is None
    fence = world.claim(child)
    world.do(machine.send, child, words("next"))
    assert world.do(machine.finish_turn, fence).wake is None, "its next turn has begun"


def test_a_chat_without_a_parent_wakes_nobody(world: World) -> None:
    subject = world.running()
    assert world.do(machine.finish_turn, subject.held, message=said("Done.")).wake is None
    assert message_id(world, "Done.")
