"""Apps and workers race for one chat: each pair in both orders, and side by side, 50 rounds.

Whatever the order: no deadlock, one winner where there can be one, a refusal that says so for the
other, every accepted message in history or in the queue, and every rule of `invariants.py` kept.
Races in which somebody has died are in `test_races_sweeps.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from models import claims, machine
from models.machine import NewChat
from rejoinder.core.errors import Rejected, Stale, StopRequested
from rejoinder.core.messages import CallKind
from rejoinder.core.parts import ToolResult
from rejoinder.core.state import Status
from tests.chats import DEAD_AFTER, call, once, said, words
from tests.integration.racing import (
    Order,
    Track,
    history,
    queue,
    refused,
    track_for,
    tx,
    users,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine


@pytest.fixture(params=list(Order), ids=lambda order: order.value)
def track(engine: Engine, request: pytest.FixtureRequest) -> Iterator[Track]:
    with track_for(engine, request.param) as track:
        yield track


def test_of_two_claims_one_gets_the_chat(track: Track) -> None:
    world = track.world
    one, two = world.worker(), world.worker()
    for _ in track.rounds():
        chat = world.new()
        got = track.race(
            lambda engine: claims.claim(engine, chat.id, one, dead_after=DEAD_AFTER),  # noqa: B023
            lambda engine: claims.claim(engine, chat.id, two, dead_after=DEAD_AFTER),  # noqa: B023
        )
        (winner,) = [claim for claim in (got.left, got.right) if claim is not None]
        row = world.row(chat.id)
        assert row["lease_id"] == winner.fence.lease_id
        assert row["worker_id"] == (one if got.left else two)
        assert row["snapshot_version"] == winner.snapshot_version == 2
        if track.order is not Order.FREE:
            assert (got.left is not None) == (track.order is Order.LEFT)


def test_an_interrupt_while_the_turn_ends_stops_it_or_comes_too_late(track: Track) -> None:
    world = track.world
    for number in track.rounds():
        queued = number % 2
        chat = world.chat(Status.RUNNING, queued=queued)
        got = track.race(
            tx(machine.interrupt, chat.id),
            tx(machine.finish_turn, chat.held, message=said("Done.")),
        )
        if refused(got.right, StopRequested):
            assert got.left.status is Status.INTERRUPTING
            world.do(machine.finish_interrupt, chat.held, partial=said("Done."))
            assert world.row(chat.id)["status"] == ("pending" if queued else "waiting")
        else:  # the turn had ended: nothing to stop, or the next turn, which had just begun
            assert got.left.changed == bool(queued)
            assert world.row(chat.id)["status"] == "waiting"
        spoken = [("user", "hello"), ("assistant", "Done."), *[("user", "queued 0")] * queued]
        assert history(world, chat.id) == spoken
        assert queue(world, chat.id) == []


def test_a_message_sent_while_the_turn_ends_is_never_stranded(track: Track) -> None:
    world = track.world
    for _ in track.rounds():
        chat = world.running()
        got = track.race(
            tx(machine.send, chat.id, words("and then?")),
            tx(machine.finish_turn, chat.held, message=said("Done.")),
        )
        first = got.left.snapshot_version < got.right.snapshot_version
        assert got.right.status is (Status.PENDING if first else Status.WAITING)
        spoken = [("user", "hello"), ("assistant", "Done."), ("user", "and then?")]
        assert history(world, chat.id) == spoken
        row = world.row(chat.id)
        assert (row["status"], row["queue_length"]) == ("pending", 0)
        assert row["turn_id"] == got.left.turn_id
        assert (got.right if first else got.left).dispatch is not None


def test_an_edit_wins_over_a_commit_in_either_order(track: Track) -> None:
    world = track.world
    for _ in track.rounds():
        chat = world.chat(Status.RUNNING, queued=1)
        (message,) = world.read("SELECT id FROM rejoinder.messages WHERE chat_id = :id", id=chat.id)
        got = track.race(
            tx(machine.edit, chat.id, message["id"], words("hi")),
            tx(machine.commit, chat.held, message=said("One moment.")),
        )
        if not refused(got.right, Stale):
            assert got.left.snapshot_version > got.right.snapshot_version
        assert history(world, chat.id) == [("user", "hi")]
        assert queue(world, chat.id) == []
        assert world.row(chat.id)["status"] == "pending"


def test_a_promotion_by_hand_and_one_by_the_turns_end_never_take_a_message_twice(
    track: Track,
) -> None:
    world = track.world
    for number in track.rounds():
        chosen = number % 2
        chat = world.running()
        ids = [world.do(machine.send, chat.id, words(f"{n}")).queued_id for n in range(2)]
        got = track.race(
            tx(machine.promote_queued, chat.id, ids[chosen]),
            tx(machine.finish_turn, chat.held, message=said("Done.")),
        )
        if refused(got.right, StopRequested):
            assert got.left.status is Status.INTERRUPTING
            world.do(machine.finish_interrupt, chat.held, partial=said("Done."))
            expected = [str(chosen), str(1 - chosen)]  # to the front, then the other
        elif refused(got.left, Rejected):
            assert chosen == 0, "only the head is promoted by the turn's end"
            expected = ["0", "1"]
        else:  # the head had begun its turn, which the chosen one then stopped
            assert chosen == 1
            expected = ["0", "1"]
        assert users(world, chat.id) == ["hello", *expected]
        assert world.row(chat.id)["status"] == "pending"


def test_of_two_submissions_of_results_one_wins(track: Track) -> None:
    world = track.world
    for _ in track.rounds():
        chat = world.chat(Status.REQUIRES_ACTION)
        got = track.race(
            tx(machine.submit_results, chat.id, [ToolResult("call-1", "left")]),
            tx(machine.submit_results, chat.id, [ToolResult("call-1", "right")]),
        )
        left, right = refused(got.left, Rejected), refused(got.right, Rejected)
        assert left != right
        (answer,) = world.read(
            "SELECT parts FROM rejoinder.messages WHERE chat_id = :id AND role = 'tool'", id=chat.id
        )
        assert [part["content"] for part in answer["parts"]] == ["right" if left else "left"]
        assert world.row(chat.id)["status"] == "pending"


def test_a_tree_is_archived_whole_or_its_child_gets_the_message(track: Track) -> None:
    world = track.world
    for number in track.rounds():
        root = world.chat(Status.WAITING)
        child, other = world.new(parent_id=root.id), world.new(parent_id=root.id)
        grandchild = world.new(parent_id=child.id)
        tree = [root, child, other, grandchild]
        for chat in tree[1:]:
            world.do(machine.interrupt, chat.id)
        got = track.race(
            tx(machine.archive, root.id),
            tx(machine.send, tree[1 + number % 3].id, words("still there?")),
        )
        archived = [world.row(chat.id)["archived"] for chat in tree]
        if refused(got.left, Rejected):
            assert not refused(got.right, Rejected)
            assert archived == [False] * 4
        else:
            assert refused(got.right, Rejected)
            assert archived == [True] * 4


def test_a_message_reaches_a_chat_or_the_chat_is_archived(track: Track) -> None:
    world = track.world
    for number in track.rounds():
        chat = world.chat(Status.ERROR, queued=number % 2)
        got = track.race(tx(machine.archive, chat.id), tx(machine.send, chat.id, words("one more")))
        accepted = not refused(got.right, Rejected)
        assert refused(got.left, Rejected) == accepted
        row = world.row(chat.id)
        assert (row["status"], row["archived"]) == (
            ("pending", False) if accepted else ("error", True)
        )
        backlog = ["queued 0"] * (number % 2)
        assert users(world, chat.id) == ["hello", *backlog, *["one more"] * accepted]


def test_no_child_is_born_into_a_tree_that_is_archived_meanwhile(track: Track) -> None:
    world = track.world
    for number in track.rounds():
        root = world.chat(Status.WAITING)
        parent = root
        if number % 2:  # a grandchild: its parent's row is not the one that is locked
            parent = world.new(parent_id=root.id)
            world.do(machine.interrupt, parent.id)
        got = track.race(
            tx(machine.archive, root.id),
            tx(machine.create, NewChat("owner", words("child"), parent_id=parent.id)),
        )
        born = not refused(got.right, Rejected)
        assert refused(got.left, Rejected) == born
        assert world.row(root.id)["archived"] != born


def test_two_creates_with_one_key_make_one_chat(track: Track) -> None:
    world = track.world
    for number in track.rounds():
        create = tx(once, f"key-{number}", machine.create, NewChat("owner", words("hello")))
        got = track.race(create, create)
        assert got.left.chat_id == got.right.chat_id
        assert got.left.turn_id == got.right.turn_id
        assert got.left.message_ids == got.right.message_ids
        assert sorted([bool(got.left.dispatch), bool(got.right.dispatch)]) == [False, True]
        assert len(world.read("SELECT id FROM rejoinder.chats")) == number + 1


def test_two_sends_with_one_key_say_it_once(track: Track) -> None:
    world = track.world
    for number in track.rounds():
        chat = world.chat(Status.RUNNING if number % 2 else Status.WAITING)
        send = tx(once, f"key-{number}", machine.send, chat.id, words("once"))
        got = track.race(send, send)
        assert sorted([bool(got.left.events), bool(got.right.events)]) == [False, True]
        assert got.left.turn_id == got.right.turn_id
        assert got.left.queued_id == got.right.queued_id
        assert users(world, chat.id) == ["hello", "once"]


def test_two_messages_at_once_keep_one_order(track: Track) -> None:
    world = track.world
    for number in track.rounds():
        chat = world.chat((Status.RUNNING, Status.WAITING, Status.ERROR)[number % 3])
        got = track.race(
            tx(machine.send, chat.id, words("left")), tx(machine.send, chat.id, words("right"))
        )
        order = ["left", "right"]
        if got.right.snapshot_version < got.left.snapshot_version:
            order.reverse()
        if track.order is not Order.FREE:
            assert (order[0] == "left") == (track.order is Order.LEFT)
        assert users(world, chat.id) == ["hello", *order]
        fence = chat.fence or world.claim(chat.id)
        while world.do(machine.finish_turn, fence).status is Status.PENDING:
            fence = world.claim(chat.id)
        assert [text for role, text in history(world, chat.id) if role == "user"][1:] == order


def test_the_last_free_place_in_the_queue_is_given_once(track: Track) -> None:
    world = track.world
    chat = world.chat(Status.RUNNING, queued=19)
    for number in track.rounds():
        got = track.race(
            tx(machine.send, chat.id, words(f"left {number}")),
            tx(machine.send, chat.id, words(f"right {number}")),
        )
        left, right = refused(got.left, Rejected), refused(got.right, Rejected)
        assert left != right
        winner = got.right if left else got.left
        assert queue(world, chat.id)[19:] == [f"{'right' if left else 'left'} {number}"]
        world.do(machine.delete_queued, chat.id, winner.queued_id)


def test_a_wake_up_is_never_lost_to_a_chat_that_is_falling_asleep(track: Track) -> None:
    world = track.world
    for number in track.rounds():
        both = number % 2 == 1
        calls = [call("call-1"), call("call-2")] if both else [call("call-1")]
        chat = world.asking(*calls, kind=CallKind.EXTERNAL)
        got = track.race(
            tx(machine.wake, chat.id, ToolResult("call-1", "here")),
            tx(machine.sleep, chat.held, deadline_seconds=300),
        )
        assert got.left.changed
        answers = world.read(
            "SELECT settled, result FROM rejoinder.tool_calls"
            " WHERE chat_id = :id AND state = 'finished'",
            id=chat.id,
        )
        assert [row["result"]["content"] for row in answers] == ["here"]
        row = world.row(chat.id)
        assert row["status"] == ("sleeping" if both else "pending")  # for the other call
        assert answers[0]["settled"] != both
        assert [role for role, _ in history(world, chat.id)][2:] == ["tool"] * (not both)


def test_of_two_wake_ups_the_second_wakes_the_chat(track: Track) -> None:
    world = track.world
    for number in track.rounds():
        chat = world.asking(call("call-1"), call("call-2"), kind=CallKind.EXTERNAL)
        world.do(machine.sleep, chat.held, deadline_seconds=300)
        same = number % 5 == 0  # a callback that is delivered twice
        got = track.race(
            tx(machine.wake, chat.id, ToolResult("call-2", "two")),
            tx(machine.wake, chat.id, ToolResult("call-2" if same else "call-1", "one")),
        )
        if same:
            assert got.left.changed != got.right.changed
            assert world.row(chat.id)["status"] == "sleeping"
            continue
        assert sorted([got.left.status, got.right.status]) == ["pending", "sleeping"]
        (answer,) = world.read(
            "SELECT parts FROM rejoinder.messages WHERE chat_id = :id AND role = 'tool'", id=chat.id
        )
        assert [part["content"] for part in answer["parts"]] == ["one", "two"]


def test_a_queued_message_is_deleted_or_promoted_but_not_both(track: Track) -> None:
    world = track.world
    for number in track.rounds():
        chat = world.chat(Status.RUNNING, queued=1 + number % 2)
        (head, *_) = world.read(
            "SELECT id, turn_id FROM rejoinder.queued_messages"
            " WHERE chat_id = :id ORDER BY position",
            id=chat.id,
        )
        got = track.race(
            tx(machine.delete_queued, chat.id, head["id"]), tx(machine.finish_turn, chat.held)
        )
        kept = refused(got.left, Rejected)
        backlog = ["queued 1"] * (number % 2)
        assert users(world, chat.id) == ["hello", *["queued 0"] * kept, *backlog]
        (turn,) = world.read("SELECT state FROM rejoinder.turns WHERE id = :id", id=head["turn_id"])
        assert turn["state"] == ("open" if kept else "cancelled")
        assert world.row(chat.id)["status"] == ("pending" if kept or backlog else "waiting")


def test_an_edit_drops_the_lease_of_a_claim_that_came_first(track: Track) -> None:
    world = track.world
    for _ in track.rounds():
        chat = world.new()
        (message,) = world.read("SELECT id FROM rejoinder.messages WHERE chat_id = :id", id=chat.id)
        got = track.race(
            tx(machine.edit, chat.id, message["id"], words("hi")),
            lambda engine: claims.claim(  # the chat is runnable before and after the edit
                engine,
                chat.id,  # noqa: B023
                world.worker_id,
                dead_after=DEAD_AFTER,
            ),
        )
        assert got.right is not None
        row = world.row(chat.id)
        if got.right.snapshot_version < got.left.snapshot_version:
            assert row["status"] == "pending"
            (hint,) = got.left.hints
            assert hint.lease_id == got.right.fence.lease_id
            with pytest.raises(Stale):
                world.do(machine.finish_turn, got.right.fence)
        else:
            assert row["status"] == "running"
            assert got.left.hints == ()
            world.do(machine.finish_turn, got.right.fence)
        assert history(world, chat.id) == [("user", "hi")]
