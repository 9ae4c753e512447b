"""Sweepers race with owners that come back late, with apps, and with each other; 50 rounds each.

A worker that was taken for dead changes nothing once its lease is gone, and loses nothing while it
still has it. Sweepers never wait: what somebody holds is left for the next sweep.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from models import claims, machine
from models.sweep import Swept, sweep
from rejoinder.core.errors import Rejected, Stale
from rejoinder.core.parts import ToolResult
from rejoinder.core.state import Status
from tests.chats import DEAD_AFTER, Subject, World, said, words
from tests.integration.racing import (
    Order,
    Track,
    history,
    refused,
    silence,
    track_for,
    tx,
    users,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from uuid import UUID

    from sqlalchemy import Engine


@pytest.fixture(params=list(Order), ids=lambda order: order.value)
def track(engine: Engine, request: pytest.FixtureRequest) -> Iterator[Track]:
    with track_for(engine, request.param) as track:
        yield track


def swept(engine: Engine) -> Swept:
    return sweep(engine, dead_after=DEAD_AFTER)


def owned_by_the_dead(world: World, queued: int = 0) -> tuple[Subject, UUID]:
    """A running chat whose worker has been silent for a minute."""
    worker_id = world.worker()
    chat = world.new()
    chat.fence = world.claim(chat.id, worker_id)
    for number in range(queued):
        world.do(machine.send, chat.id, words(f"queued {number}"))
    silence(world, worker_id)
    return chat, worker_id


def stolen_by(chat: Subject, thief: UUID) -> Callable[[Engine], claims.Claim | None]:
    """Sweep, then claim for another worker."""

    def steal(engine: Engine) -> claims.Claim | None:
        swept(engine)
        return claims.claim(engine, chat.id, thief, dead_after=DEAD_AFTER)

    return steal


def late_commit(chat: Subject) -> Callable[[Engine], Any]:
    return tx(machine.commit, chat.held, message=said("late"))


def late_release(chat: Subject) -> Callable[[Engine], Any]:
    return tx(machine.release, chat.held)


@pytest.mark.parametrize("late", [late_commit, late_release])
def test_a_stolen_lease_is_worth_nothing_and_a_kept_one_everything(
    track: Track, late: Callable[[Subject], Callable[[Engine], Any]]
) -> None:
    world = track.world
    thief = world.worker("thief")
    for number in track.rounds():
        chat, _worker_id = owned_by_the_dead(world)
        got = track.race(
            stolen_by(chat, thief),
            late(chat),
            waits=track.order is Order.LEFT,
            hold=1 + number % 2,  # the late one meets the recovery, or already the thief
        )
        lost = refused(got.right, Stale)
        # Too early to see the owner's last write, the thief leaves empty-handed: it was written by
        # somebody who rings the bell again after the commit.
        fence = got.left.fence if got.left else world.claim(chat.id, thief)
        assert got.left or not lost
        row = world.row(chat.id)
        assert (row["status"], row["worker_id"]) == ("running", thief)
        assert row["lease_id"] == fence.lease_id
        assert row["crashes"] == lost
        if track.order is not Order.FREE:
            assert lost == (track.order is Order.LEFT)
        answers = ["late"] if late is late_commit and not lost else []
        assert [text for role, text in history(world, chat.id) if role == "assistant"] == answers
        world.do(machine.finish_turn, fence)  # the thief's fence is the good one


def test_an_owner_that_is_heard_of_in_time_keeps_its_chats_and_else_learns_that_they_are_gone(
    track: Track,
) -> None:
    world = track.world
    for _ in track.rounds():
        chat, worker_id = owned_by_the_dead(world)
        got = track.race(
            swept,
            lambda engine: claims.heartbeat(engine, worker_id),  # noqa: B023
            waits=track.order is Order.LEFT,  # a sweeper does not wait for a heartbeat
        )
        assert got.left.failed == []
        taken = [effects.chat_id for effects in got.left.effects] == [chat.id]
        row = world.row(chat.id)
        if track.order is not Order.FREE:
            assert taken == (track.order is Order.LEFT)
        if taken:
            assert (row["status"], row["crashes"]) == ("pending", 1)
            assert got.right == [], "the heartbeat reports a lease that was taken"
            with pytest.raises(Stale):
                world.do(machine.finish_turn, chat.held)
        else:
            assert (row["status"], row["lease_id"]) == ("running", chat.held.lease_id)
            assert [lease.lease_id for lease in got.right] == [chat.held.lease_id]
            world.do(machine.finish_turn, chat.held)


def test_two_sweepers_handle_each_chat_once_and_never_wait_for_each_other(track: Track) -> None:
    world = track.world
    for number in track.rounds():
        dead = [owned_by_the_dead(world)[0] for _ in range(2)]
        if number % 2:
            world.do(machine.interrupt, dead[0].id)
        parked = [world.chat(Status.REQUIRES_ACTION), world.chat(Status.SLEEPING)]
        overdue = [world.new(), world.new()]
        time_passes(world, *parked, *overdue)
        got = track.race(swept, swept, waits=False)
        moved = [e.chat_id for side in (got.left, got.right) for e in side.effects]
        assert sorted(moved) == sorted(chat.id for chat in (*dead, *parked))
        bells = [d.chat_id for side in (got.left, got.right) for d in side.dispatches]
        assert [bells.count(chat.id) for chat in overdue] == [1, 1]
        assert [bells.count(chat.id) for chat in (*dead, *parked)] == [0] * 4
        assert got.left.failed == got.right.failed == []
        for chat in dead:
            row = world.row(chat.id)
            stopped = number % 2 and chat is dead[0]
            expected = ("waiting", 0) if stopped else ("pending", 1)
            assert (row["status"], row["crashes"]) == expected
        for chat in parked:
            assert world.row(chat.id)["status"] == "pending"
            assert [role for role, _ in history(world, chat.id)] == ["user", "assistant", "tool"]
        assert [world.row(chat.id)["dispatches"] for chat in overdue] == [2, 2]


def test_a_stop_of_a_chat_whose_owner_died_always_stops_it(track: Track) -> None:
    world = track.world
    for number in track.rounds():
        queued = number % 2
        chat, _ = owned_by_the_dead(world, queued)
        got = track.race(
            tx(machine.interrupt, chat.id),
            tx(machine.recover, chat.id, chat.held.lease_id, partial=said("Half an ans")),
        )
        assert got.left.changed
        row = world.row(chat.id)
        if got.left.status is Status.INTERRUPTING:  # first: recovery then closes the interrupt
            assert row["status"] == ("pending" if queued else "waiting")
            assert ("assistant", "Half an ans") in history(world, chat.id)
        else:
            assert got.right.status is Status.PENDING
            assert row["status"] == ("pending" if queued else "waiting")
        assert row["crashes"] == (0 if queued or got.left.status is Status.INTERRUPTING else 1)
        assert users(world, chat.id) == ["hello", *["queued 0"] * queued]
        assert [role for role, _ in history(world, chat.id)].count("user") == 1 + queued


def test_a_stop_is_finished_once_by_its_owner_or_by_a_sweeper(track: Track) -> None:
    world = track.world
    for _ in track.rounds():
        chat, _worker_id = owned_by_the_dead(world, queued=2)
        world.do(machine.interrupt, chat.id)
        got = track.race(
            swept,
            tx(machine.finish_interrupt, chat.held, partial=said("Half an ans")),
            waits=track.order is Order.LEFT,
        )
        by_owner = not refused(got.right, Stale)
        assert [e.chat_id for e in got.left.effects] == ([] if by_owner else [chat.id])
        assert (("assistant", "Half an ans") in history(world, chat.id)) == by_owner
        assert users(world, chat.id) == ["hello", "queued 0", "queued 1"]
        row = world.row(chat.id)
        assert (row["status"], row["queue_length"]) == ("pending", 1)  # one promotion, not two


def test_an_answer_at_the_last_moment_counts_or_the_deadline_does(track: Track) -> None:
    world = track.world
    for _ in track.rounds():
        chat = world.chat(Status.REQUIRES_ACTION)
        time_passes(world, chat)
        got = track.race(
            swept,
            tx(machine.submit_results, chat.id, [ToolResult("call-1", "in time")]),
            waits=track.order is Order.LEFT,
        )
        answered = not refused(got.right, Rejected)
        assert [e.chat_id for e in got.left.effects] == ([] if answered else [chat.id])
        (answer,) = world.read(
            "SELECT parts FROM rejoinder.messages WHERE chat_id = :id AND role = 'tool'", id=chat.id
        )
        (result,) = answer["parts"]
        assert result["is_error"] != answered
        assert (result["content"] == "in time") == answered
        assert world.row(chat.id)["status"] == "pending"


def test_a_claim_of_an_overdue_chat_and_its_second_bell_do_not_disturb_each_other(
    track: Track,
) -> None:
    world = track.world
    for _ in track.rounds():
        chat = world.new()
        time_passes(world, chat)
        got = track.race(
            swept,
            lambda engine: claims.claim(  # it waits for the sweeper, and then succeeds
                engine,
                chat.id,  # noqa: B023
                world.worker_id,
                dead_after=DEAD_AFTER,
            ),
            waits=track.order is Order.LEFT,
        )
        assert got.right is not None
        row = world.row(chat.id)
        assert (row["status"], row["dispatches"]) == ("running", 0)
        world.do(machine.finish_turn, got.right.fence)


def time_passes(world: World, *chats: Subject) -> None:
    """Let deadlines and times to look again of these chats have come."""
    with world.engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE rejoinder.chats SET deadline = deadline - interval '1 hour',"
                " redispatch_at = redispatch_at - interval '1 hour' WHERE id = ANY(:ids)"
            ),
            {"ids": [chat.id for chat in chats]},
        )
        connection.execute(
            text(
                "UPDATE rejoinder.tool_calls SET deadline = deadline - interval '1 hour'"
                " WHERE chat_id = ANY(:ids)"
            ),
            {"ids": [chat.id for chat in chats]},
        )
