"""Chats and those below them, brought by real transitions to where a test wants them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from models import machine
from models.engine import transaction
from rejoinder.core.messages import CallKind, CallPlan
from rejoinder.core.parts import ToolCall
from tests.chats import Subject, World, said

if TYPE_CHECKING:
    from uuid import UUID

    from sqlalchemy import Engine

    from rejoinder.core.effects import Effects


def child_of(world: World, parent_id: UUID) -> Subject:
    child = world.new(parent_id=parent_id)
    child.fence = world.claim(child.id)
    return child


def waits(world: World, parent: Subject, *groups: tuple[UUID, ...], seconds: float = 300) -> None:
    """Have a running chat ask for waits, one for each group of chats."""
    calls = [ToolCall(f"wait-{n}", "wait_agent", {}) for n in range(len(groups))]
    plans = {
        call.call_id: CallPlan(CallKind.CHILDREN, seconds=seconds, waits_for=ids)
        for call, ids in zip(calls, groups, strict=True)
    }
    parent.fence = world.do(machine.record, parent.held, said("Wait.", *calls), plans=plans).fence


def family(world: World, count: int = 1, *, together: bool = True) -> tuple[Subject, list[Subject]]:
    """A running chat that has asked to wait for its running children."""
    parent = world.running()
    children = [child_of(world, parent.id) for _ in range(count)]
    ids = tuple(child.id for child in children)
    waits(world, parent, *([ids] if together else [(each,) for each in ids]))
    return parent, children


def sleep(engine: Engine, parent: Subject) -> Any:
    with transaction(engine) as session:
        return machine.sleep(session, parent.held, deadline_seconds=300)


def rest(engine: Engine, child: Subject) -> Effects:
    """A child comes to rest, and tells its parent, as `dispatch.publish` does."""
    with transaction(engine) as session:
        effects = machine.finish_turn(session, child.held, message=said("Done."))
    assert effects.wake is not None
    with transaction(engine) as session:
        return machine.wake(session, effects.wake)


def status(world: World, *chats: Subject) -> list[str]:
    return [world.row(chat.id)["status"] for chat in chats]
