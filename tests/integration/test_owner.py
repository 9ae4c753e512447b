"""An owner's transitions on what it knows: the same rows as under the lock, and never old news."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import event, text

from models import claims, machine, snapshot
from models.engine import at_once, autocommit, make_engine
from models.machine.cas_store import perform
from rejoinder.core.errors import Stale, StopRequested
from rejoinder.core.messages import CallPlan, Delivery, Failure, NewMessage, Role, Usage, WhenBusy
from rejoinder.core.model import StopReason
from rejoinder.core.parts import Reasoning, Text, ToolCall, ToolResult
from tasks.histories import longer
from tests.chats import DEAD_AFTER, Subject, World, call, said, words
from tests.integration.invariants import assert_invariants
from tests.integration.racing import Order, track_for, tx

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Engine

FRESH = {"id", "chat_id", "turn_id", "root_id", "lease_id", "worker_id", "step_id", "message_id"}
FRESH |= {"answer_id", "redispatch_at", "run_after", "task_id", "joined_id"}
"""Columns that differ from one run to another; times do, too."""
OUT_OF_REACH = NewMessage(
    Role.ASSISTANT,
    (Text("Half of\x00it \ud800"),),
    model="scripted:one",
    usage=Usage(input_tokens=3, output_tokens=4),
    stop_reason=StopReason.PAUSE,
    request_id="odd \\ id \x00",
)


@pytest.fixture
def world(engine: Engine) -> World:
    return World(engine)


def two_calls(world: World, chat: Subject) -> None:
    plans = {"a": CallPlan(), "b": CallPlan(delivery=Delivery.IDEMPOTENT)}
    message = said("Let me look.", call("a"), call("b"))
    chat.fence = world.do(machine.record, chat.held, message, plans=plans, start=["a", "b"]).fence


def answered(world: World, chat: Subject) -> None:
    two_calls(world, chat)
    results = [ToolResult("b", {"x": [1, "\x00"]}), ToolResult("a", "no", is_error=True)]
    world.do(machine.commit, chat.held, results=results)


def finished(world: World, chat: Subject) -> None:
    answered(world, chat)
    world.do(machine.finish_turn, world.claim(chat.id), message=said("Done."))


def paused(world: World, chat: Subject) -> None:
    world.do(machine.commit, chat.held, message=OUT_OF_REACH)


def failed(world: World, chat: Subject) -> None:
    two_calls(world, chat)
    world.do(machine.fail, chat.held, Failure("generic", "It broke."), results=[])


def retried(world: World, chat: Subject) -> None:
    state = {"kind": "overloaded"}
    world.do(machine.retry_later, chat.held, delay_seconds=60, retry_state=state, lost=OUT_OF_REACH)


def released(world: World, chat: Subject) -> None:
    two_calls(world, chat)
    world.do(machine.release, chat.held, results=[ToolResult("a", "ok")], untouched=["b"])


def steered(world: World, chat: Subject) -> None:
    world.do(machine.send, chat.id, words("And that?"), when_busy=WhenBusy.STEER)
    world.do(machine.commit, chat.held, message=said("So far."))
    world.do(machine.finish_turn, world.claim(chat.id), message=said("Done, both."))


STORIES = (answered, finished, paused, failed, retried, released, steered)


@pytest.mark.parametrize("story", STORIES)
def test_rows_are_the_same_with_and_without_the_lock(
    world: World, story: Callable[[World, Subject], None]
) -> None:
    chats = []
    for knows in (True, False):
        chat = world.running()
        if not knows:
            world = Forgetful(world.engine)
        story(world, chat)
        chats.append(chat)
    one, other = (told(world, chat) for chat in chats)
    assert one == other


class Forgetful(World):
    """Workers that lock, because they know nothing."""

    def do(self, transition: Callable[..., Any], *args: Any, **options: Any) -> Any:
        self.known.clear()
        return super().do(transition, *args, **options)


def told(world: World, chat: Subject) -> dict[str, Any]:
    """All rows of a chat, without what is new each time."""
    ids = [r["id"] for r in world.read("SELECT id FROM rejoinder.chats")]
    assert chat.id in ids
    return {
        table: [
            {k: _seen(v) for k, v in row.items() if k not in FRESH and not k.endswith("_at")}
            | {k: row[k] is not None for k in row if k.endswith("_at")}
            for row in rows
        ]
        for table, rows in world.dump().items()
        for rows in [[r for r in rows if r.get("chat_id", r.get("id")) == chat.id]]
    }


def _seen(value: object) -> object:
    return str(value)


@contextmanager
def statements(engine: Engine) -> Iterator[list[str]]:
    """What is said to Postgres meanwhile."""
    heard: list[str] = []

    def hear(_c: object, _cursor: object, statement: str, *_: object) -> None:
        heard.append(statement)

    for each in (engine, autocommit(engine)):
        event.listen(each, "before_cursor_execute", hear)
    yield heard
    for each in (engine, autocommit(engine)):
        event.remove(each, "before_cursor_execute", hear)


def test_a_step_says_three_things_to_the_database(world: World) -> None:
    with statements(world.engine) as heard:
        finished(world, world.running())  # prepares
        chat = world.new()
        heard.clear()
        chat.fence = world.claim(chat.id)
        answered(world, chat)
    assert [statement.split()[0] for statement in heard] == ["EXECUTE"] * 3


def test_a_queued_message_in_between_is_promoted(world: World) -> None:
    chat = world.running()
    world.do(machine.send, chat.id, words("Next."))
    effects = world.do(machine.finish_turn, chat.held, message=said("Done."))
    assert (effects.status, world.row(chat.id)["queue_length"]) == ("pending", 0)
    assert_invariants(world.engine)


def test_a_stop_in_between_is_heard(world: World) -> None:
    chat = world.running()
    world.do(machine.interrupt, chat.id)
    before = world.dump()
    with pytest.raises(StopRequested):
        world.do(machine.finish_turn, chat.held, message=said("Done."))
    assert world.dump() == before


def test_an_owner_that_lost_its_lease_writes_nothing(world: World) -> None:
    chat = world.running()
    world.do(machine.recover, chat.id, chat.held.lease_id)
    before = world.dump()
    with pytest.raises(Stale):
        world.do(machine.commit, chat.held, message=said("Too late."))
    assert world.dump() == before


def test_versions_that_repeat_after_a_failover_do_not_bring_a_lost_lease_back(
    world: World,
) -> None:
    chat = world.new()
    before = world.row(chat.id)
    chat.fence = world.claim(chat.id)
    lost = """UPDATE rejoinder.chats SET status = 'pending', lease_id = NULL, worker_id = NULL,
        snapshot_version = :snapshot_version, redispatch_at = :redispatch_at WHERE id = :id"""
    with world.engine.begin() as connection:  # the new primary has never seen that claim
        connection.execute(text(lost), before)
    known = world.known[chat.held.lease_id].chat
    world.claim(chat.id)
    assert world.row(chat.id)["snapshot_version"] == known["snapshot_version"]
    rows = world.dump()
    with pytest.raises(Stale):
        world.do(machine.finish_turn, chat.held, message=said("Too late."))
    assert world.dump() == rows


def test_labels_in_between_stay(world: World) -> None:
    chat = world.running()
    world.do(machine.set_labels, chat.id, {"colour": "red"})
    world.do(machine.finish_turn, chat.held, message=said("Done."))
    assert world.row(chat.id)["labels"] == {"colour": "red"}


def test_an_owner_that_waits_for_somebody_sees_what_that_one_did(engine: Engine) -> None:
    with track_for(engine, Order.LEFT) as track:
        world = track.world
        chat = world.running()
        known, done = world.known[chat.held.lease_id], said("Done.")
        got = track.race(
            tx(machine.send, chat.id, words("Wait!")),
            lambda own: perform(own, known, machine.finish_turn, chat.held, message=done),
        )
    assert got.right.effects.status == "pending"
    assert got.right.messages is None
    assert [m["role"] for m in world.dump()["messages"]] == ["user", "assistant", "user"]
    assert_invariants(engine)


def test_a_claim_that_waited_knows_nothing_but_the_lease(engine: Engine) -> None:
    with track_for(engine, Order.LEFT) as track:
        world = track.world
        chat = world.new()
        (first,) = world.dump()["messages"]
        got = track.race(
            tx(machine.edit, chat.id, first["id"], words("Other words.")),
            lambda own: claims.claim(own, chat.id, world.worker_id, dead_after=DEAD_AFTER),
        )
    edited, claim = got.left, got.right
    assert (claim.turn_id, claim.known, claim.around) == (edited.turn_id, None, None)
    assert claim.fence.history_version == edited.history_version


def test_messages_stand_in_the_order_in_which_they_were_stored(world: World) -> None:
    chats = [world.running() for _ in range(3)]
    for chat in chats:
        two_calls(world, chat)
    for chat in reversed(chats):
        world.do(machine.commit, chat.held, results=[ToolResult(c, "ok") for c in "ab"])
        world.do(machine.send, chat.id, words("More."), when_busy=WhenBusy.STEER)
    for chat in chats:
        world.do(machine.commit, world.claim(chat.id), message=said("So far."))
        rows = [m for m in world.dump()["messages"] if m["chat_id"] == chat.id]
        roles = [m["role"] for m in sorted(rows, key=lambda m: m["id"])]
        assert roles == ["user", "assistant", "tool", "user", "assistant"]


def test_a_pooler_that_forgets_prepared_statements_does_no_harm(world: World) -> None:
    engine = make_engine(
        world.engine.url.render_as_string(hide_password=False), pool_size=1, max_overflow=0
    )
    lent = World(engine)
    finished(lent, lent.running())
    with at_once(engine) as connection:
        connection.exec_driver_sql("DEALLOCATE ALL")
    finished(lent, lent.running())
    with statements(engine) as heard:
        finished(lent, lent.running())
    assert not [statement for statement in heard if statement.startswith("EXECUTE")]
    engine.dispose()


def test_without_prepared_statements_the_same_is_said_in_full(world: World) -> None:
    url = world.engine.url.render_as_string(hide_password=False)
    plain = World(make_engine(url, prepare=False))
    with statements(plain.engine) as heard:
        finished(plain, plain.running())
    assert not [each for each in heard if each.startswith(("PREPARE", "EXECUTE"))]
    plain.engine.dispose()


def test_a_migration_that_changes_a_column_does_no_harm(world: World) -> None:
    finished(world, world.running())
    with world.engine.begin() as connection:
        connection.exec_driver_sql(
            "ALTER TABLE rejoinder.chats ALTER COLUMN title TYPE varchar(900)"
        )
    finished(world, world.running())
    with statements(world.engine) as heard:
        finished(world, world.running())
    assert [statement for statement in heard if statement.startswith("EXECUTE")]


def test_what_an_owner_takes_for_now_has_been(world: World) -> None:
    for _ in range(20):
        chat = world.running()
        retry_state = {"kind": "overloaded"}
        world.do(machine.retry_later, chat.held, delay_seconds=0, retry_state=retry_state)
        world.claim(chat.id)  # it is due


def test_what_is_kept_of_history_is_what_would_be_read(world: World) -> None:
    chat = world.new()
    got = claims.claim(world.engine, chat.id, world.worker_id, dead_after=DEAD_AFTER)
    assert got is not None
    read = world.transact(lambda tx: snapshot.load(tx, chat.id, got.turn_id)).snapshot.history
    thought = Reasoning("Hm.", signature="s", extra={"a": [1, None]})
    asks = ToolCall("a", "look_up", {"q": "\x00", "n": 1.0}, extra={"caller": {"type": "direct"}})
    message = NewMessage(
        Role.ASSISTANT,
        (thought, Text("Let me look."), asks),
        model="anthropic:claude",
        usage=Usage(input_tokens=3, output_tokens=4, cache_read_tokens=5),
        stop_reason=StopReason.TOOL_USE,
    )
    first = perform(world.engine, got.known, machine.record, got.fence, message, start=["a"])
    assert first.effects.fence is not None
    results = [ToolResult("a", [{"type": "text", "text": "so"}, {"x": 1}], is_error=True)]
    second = perform(
        world.engine, first.known, machine.commit, first.effects.fence, results=results
    )
    kept = longer(longer(read, first.messages or ()), second.messages or ())
    again = world.transact(lambda tx: snapshot.load(tx, chat.id, got.turn_id)).snapshot
    assert kept == again.history
    assert len(kept) == 3
