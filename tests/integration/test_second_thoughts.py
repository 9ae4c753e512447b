"""Late stops, reused call ids, full queues, and sweeps past what is broken."""

from datetime import timedelta
from uuid import uuid4

import pytest
from sqlalchemy import Engine, text

from models import claims, machine
from models.engine import make_engine
from models.sweep import sweep
from rejoinder.core.errors import Rejected
from rejoinder.core.messages import CallKind, CallPlan
from rejoinder.core.parts import ToolResult
from rejoinder.core.state import Status
from tests.chats import DEAD_AFTER, World, call, said, words
from tests.integration.invariants import assert_invariants
from tests.integration.reading import history, queue


@pytest.fixture
def world(engine: Engine) -> World:
    return World(engine)


def test_a_late_stop_does_not_hit_the_next_messages_turn(world: World) -> None:
    chat = world.chat(Status.RUNNING, queued=1)
    old = world.row(chat.id)["turn_id"]
    world.do(machine.finish_turn, chat.held, message=said("Done."))
    assert not world.do(machine.interrupt, chat.id, turn_id=old).changed
    assert world.do(machine.interrupt, chat.id, turn_id=world.row(chat.id)["turn_id"]).changed


def test_an_abandoned_tasks_answer_does_not_fit_a_later_call_of_the_same_id(world: World) -> None:
    chat = world.asking(kind=CallKind.EXTERNAL)
    world.do(machine.sleep, chat.held, deadline_seconds=60)
    world.do(machine.interrupt, chat.id)
    world.do(machine.send, chat.id, words("again"))
    fence = world.claim(chat.id)
    plans = {"call-1": CallPlan(CallKind.EXTERNAL, external_id="another task")}
    recorded = world.do(machine.record, fence, said("Once more.", call()), plans=plans)
    world.do(machine.sleep, recorded.fence, deadline_seconds=60)
    late = ToolResult("call-1", "too late")
    assert not world.do(machine.wake, chat.id, late, external_id="task-call-1").changed
    own = world.do(machine.wake, chat.id, late, external_id="another task")
    assert own.status is Status.PENDING


def test_results_for_an_earlier_turn_are_refused(world: World) -> None:
    chat = world.chat(Status.REQUIRES_ACTION)
    with pytest.raises(Rejected, match="earlier turn"):
        world.do(machine.submit_results, chat.id, [ToolResult("call-1", "yes")], turn_id=uuid4())


def test_a_failed_chat_with_a_full_queue_takes_a_message(world: World) -> None:
    chat = world.chat(Status.ERROR, queued=20)
    effects = world.do(machine.send, chat.id, words("one more"))
    assert effects.status is Status.PENDING
    assert world.row(chat.id)["queue_length"] == 20
    assert queue(world, chat.id)[-1] == "one more"
    assert history(world, chat.id)[-1] == "user: queued 0"


def test_a_partial_answer_with_doubled_call_ids_is_kept(world: World) -> None:
    chat = world.chat(Status.INTERRUPTING)
    partial = said("I was", call(), call())
    assert world.do(machine.finish_interrupt, chat.held, partial=partial).status is Status.WAITING
    assert_invariants(world.engine)


def test_a_stop_knows_which_calls_never_began(world: World) -> None:
    chat = world.asking(start=True)
    world.do(machine.interrupt, chat.id)
    world.do(machine.release, chat.held, untouched=["call-1"])
    (row,) = world.read("SELECT state, result FROM rejoinder.tool_calls")
    assert row["state"] == "finished"
    assert "had started" not in row["result"]["content"]


def test_chats_that_cannot_be_moved_do_not_hold_up_the_rest(world: World) -> None:
    dead = world.worker("dead")
    chats = [world.new() for _ in range(5)]
    for chat in chats:
        chat.fence = world.claim(chat.id, dead)
    for chat in chats[:2]:
        world.do(machine.send, chat.id, words("queued"))
        world.do(machine.interrupt, chat.id)
    with world.engine.begin() as connection:
        connection.execute(text("DELETE FROM rejoinder.queued_messages"))
        connection.execute(
            text("UPDATE rejoinder.workers SET seen_at = now() - interval '1 day' WHERE id = :w"),
            {"w": dead},
        )
    swept = sweep(world.engine, dead_after=DEAD_AFTER, batch=2)
    assert set(swept.failed) == {chat.id for chat in chats[:2]}
    assert [world.row(chat.id)["status"] for chat in chats] == ["error"] * 2 + ["pending"] * 3


def test_the_machine_does_not_depend_on_the_databases_isolation(
    world: World, database_url: str
) -> None:
    with world.engine.begin() as connection:
        name = connection.scalar(text("SELECT current_database()"))
        connection.execute(
            text(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
        )
    engine = make_engine(database_url, connect_args={"application_name": "mine"})
    with engine.connect() as connection:
        shown = connection.execute(
            text("SELECT current_setting('transaction_isolation'), current_setting('lock_timeout')")
        ).one()
    engine.dispose()
    assert tuple(shown) == ("read committed", "10s")


def test_a_dead_process_cannot_claim(world: World) -> None:
    chat = world.new()
    dead_after = timedelta(seconds=0)
    assert claims.claim(world.engine, chat.id, world.worker_id, dead_after=dead_after) is None


def test_a_turn_whose_end_nobody_was_told_of_is_announced_by_the_sweep(world: World) -> None:
    chat = world.chat(Status.WAITING)
    assert sweep(world.engine, dead_after=DEAD_AFTER).ended == [], "its publisher may be at it"
    with world.engine.begin() as connection:
        connection.execute(text("UPDATE rejoinder.turns SET ended_at = now() - interval '1 hour'"))
    ((chat_id, end),) = sweep(world.engine, dead_after=DEAD_AFTER).ended
    assert (chat_id, end.state, end.answer) == (chat.id, "finished", "Done.")
    claims.announced(world.engine, [end.turn_id])
    assert sweep(world.engine, dead_after=DEAD_AFTER).ended == []
