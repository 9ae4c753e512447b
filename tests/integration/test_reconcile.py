"""reconcile: whatever an operator or a bug left in the rows, the chat can be used again.

That a consistent chat stays as it is, the matrix shows for every state. Here rows are broken by
hand, one inconsistency at a time, with the CHECK that forbids it dropped.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from models import machine
from models.base import table_of
from models.engine import transaction
from models.tables import Chat
from rejoinder.core.effects import Cause
from rejoinder.core.state import Status
from tests.chats import World, said, words
from tests.integration.reading import history, queue, sql
from tests.integration.schema import checks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine


@dataclass(frozen=True)
class Broken:
    """A legal chat, and the SQL that makes it an impossible one."""

    status: Status
    sql: str
    queued: int = 0
    without: tuple[str, ...] = ()
    """The conditions that would refuse it."""


CHATS = "UPDATE rejoinder.chats SET"
QUEUED_TURN = """
    WITH t AS (INSERT INTO rejoinder.turns (id, chat_id, kind, state)
               SELECT gen_random_uuid(), id, 'message', 'queued' FROM rejoinder.chats RETURNING *)
    INSERT INTO rejoinder.queued_messages (chat_id, turn_id, position, parts)
    SELECT t.chat_id, t.id, 1000, '[{"type":"text","text":"stray"}]' FROM t"""
OPEN_CALL = """
    INSERT INTO rejoinder.tool_calls
           (chat_id, message_id, call_id, name, arguments, kind, delivery, state)
    SELECT chat_id, min(id), 'stray', 'look_up', '{}', 'local', 'once', 'requested'
      FROM rejoinder.messages GROUP BY chat_id"""
NO_CALLS = "DELETE FROM rejoinder.tool_calls"
ENDED = "UPDATE rejoinder.turns SET state = 'interrupted', ended_at = now()"
OPEN_TURN = """
    INSERT INTO rejoinder.turns (id, chat_id, kind, state)
    SELECT gen_random_uuid(), id, 'message', 'open' FROM rejoinder.chats"""
OTHER_TURN = "turn_id = (SELECT id FROM rejoinder.turns WHERE state <> 'open')"
THE_TURN = "turn_id = (SELECT id FROM rejoinder.turns)"
THE_WORKER = "worker_id = (SELECT id FROM rejoinder.workers)"

BROKEN = {
    "the count of the queue is wrong": Broken(Status.RUNNING, f"{CHATS} queue_length = 3"),
    "a queued message is not counted": Broken(Status.PENDING, QUEUED_TURN),
    "a message is stranded": Broken(Status.WAITING, QUEUED_TURN),
    "a stranded message is counted": Broken(
        Status.WAITING,
        f"{QUEUED_TURN}; {CHATS} queue_length = 1",
        without=("waiting_has_no_queue",),
    ),
    "the queue is too long": Broken(Status.RUNNING, QUEUED_TURN, queued=20),
    "busy and archived": Broken(
        Status.PENDING, f"{CHATS} archived = true", without=("archived_at_rest",)
    ),
    "running without a lease": Broken(
        Status.RUNNING,
        f"{CHATS} lease_id = NULL, worker_id = NULL",
        without=("lease_iff_owned",),
    ),
    "a lease without a worker": Broken(
        Status.RUNNING, f"{CHATS} worker_id = NULL", without=("owner_iff_lease",)
    ),
    "pending with a lease": Broken(
        Status.PENDING,
        f"{CHATS} lease_id = gen_random_uuid(), {THE_WORKER}",
        without=("lease_iff_owned",),
    ),
    "asleep without a deadline": Broken(
        Status.SLEEPING, f"{CHATS} deadline = NULL", without=("deadline_iff_parked",)
    ),
    "a deadline for nothing": Broken(
        Status.PENDING, f"{CHATS} deadline = now()", without=("deadline_iff_parked",)
    ),
    "an error without its reason": Broken(
        Status.ERROR, f"{CHATS} last_error = NULL", without=("error_iff_error",)
    ),
    "a reason without an error": Broken(
        Status.WAITING, f"{CHATS} last_error = '{{}}'", without=("error_iff_error",)
    ),
    "pending but never dispatched again": Broken(
        Status.PENDING, f"{CHATS} redispatch_at = NULL", without=("redispatch_iff_pending",)
    ),
    "to be dispatched though it rests": Broken(
        Status.WAITING, f"{CHATS} redispatch_at = now()", without=("redispatch_iff_pending",)
    ),
    "running though it is to wait": Broken(
        Status.RUNNING, f"{CHATS} run_after = now()", without=("run_after_is_pending",)
    ),
    "woken though nobody sleeps": Broken(
        Status.WAITING, f"{CHATS} woken = true", without=("woken_is_awake",)
    ),
    "a retry of nothing": Broken(
        Status.PENDING, f"{CHATS} retry_state = '{{}}'", without=("retry_iff_attempt",)
    ),
    "calls are open on the user's turn": Broken(Status.WAITING, OPEN_CALL),
    "requires an action nobody can take": Broken(Status.REQUIRES_ACTION, NO_CALLS),
    "sleeps for nobody": Broken(Status.SLEEPING, NO_CALLS),
    "busy without an open turn": Broken(Status.PENDING, ENDED),
    "a turn is open on the user's turn": Broken(Status.WAITING, OPEN_TURN),
    "the chat's turn is not the open one": Broken(
        Status.PENDING, f"{CHATS} {OTHER_TURN}", queued=1
    ),
    "a turn at rest": Broken(
        Status.WAITING,
        f"{CHATS} {THE_TURN}",
        without=("turn_iff_busy",),
    ),
    "busy without a turn": Broken(
        Status.PENDING, f"{CHATS} turn_id = NULL", without=("turn_iff_busy",)
    ),
}


@pytest.fixture
def world(engine: Engine) -> World:
    return World(engine)


@contextmanager
def without_checks(world: World, names: tuple[str, ...]) -> Iterator[None]:
    """Drop CHECKs of the chats, then add them again: Postgres looks at the rows itself."""
    declared = checks(table_of(Chat))
    for name in names:
        sql(world, f"ALTER TABLE rejoinder.chats DROP CONSTRAINT chats_{name}")
    yield
    for name in (f"chats_{name}" for name in names):
        sql(world, f"ALTER TABLE rejoinder.chats ADD CONSTRAINT {name} CHECK ({declared[name]})")


@pytest.mark.parametrize("name", BROKEN)
def test_an_impossible_chat_becomes_an_error_that_can_be_left(world: World, name: str) -> None:
    broken = BROKEN[name]
    chat_id = world.chat(broken.status, queued=broken.queued).id
    failed_before = world.read("SELECT id FROM rejoinder.turns WHERE state = 'failed'")
    with without_checks(world, broken.without):
        sql(world, broken.sql)
        owned = world.row(chat_id)["worker_id"], world.row(chat_id)["lease_id"]
        effects = world.do(machine.reconcile, chat_id)
    assert (effects.status, effects.changed) == (Status.ERROR, True)
    row = world.row(chat_id)
    assert row["last_error"]["kind"] == "reconciled"
    assert row["last_error"]["detail"]
    assert (row["lease_id"], row["turn_id"], row["deadline"]) == (None, None, None)
    assert row["queue_length"] == len(queue(world, chat_id))
    assert [hint.cause for hint in effects.hints] == [Cause.LEASE_LOST] * all(owned)
    assert world.read("SELECT id FROM rejoinder.turns WHERE state = 'open'") == []
    failed = world.read("SELECT id FROM rejoinder.turns WHERE state = 'failed'")
    told = [end.turn_id for end in effects.ended if end.state == "failed"]
    assert told == [row["id"] for row in failed if row not in failed_before]
    assert not world.do(machine.reconcile, chat_id).changed, "once is enough"
    _goes_on(world, name)


def _goes_on(world: World, name: str) -> None:
    (chat,) = world.read("SELECT * FROM rejoinder.chats")
    if chat["archived"]:
        with transaction(world.engine) as tx:
            machine.unarchive(tx, chat["id"])
    if chat["queue_length"] == 20:
        (head, *_) = world.read("SELECT id FROM rejoinder.queued_messages ORDER BY position")
        effects = world.do(machine.promote_queued, chat["id"], head["id"])
    else:
        effects = world.do(machine.send, chat["id"], words("and now?"))
    assert effects.status is Status.PENDING, name
    while effects.status is Status.PENDING:
        fence = world.claim(chat["id"])
        effects = world.do(machine.finish_turn, fence, message=said("Fine."))
    assert queue(world, chat["id"]) == []
    assert history(world, chat["id"])[-1] == "assistant: Fine."
