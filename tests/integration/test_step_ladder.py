"""A step whose writes fail: repeated, handed back with its results, or ended in `error`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from celery.app.task import Context
from celery.exceptions import Reject
from sqlalchemy import text

from models import claims, machine
from rejoinder.core.errors import Rejected, Unavailable
from rejoinder.core.settings import Settings
from rejoinder.core.state import Status
from tasks import app, callbacks, db_retry, dispatch, front_door, stopping
from tasks import runtime as runtimes
from tasks.runtime import Runtime
from tasks.step import take
from tests.chats import Subject, World
from tests.integration.invariants import assert_invariants

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sqlalchemy.orm import Session

    from rejoinder.core.effects import Dispatch
    from tests.conftest import RedisSpace

ADDS = {"text": "Let me add.", "calls": [{"name": "add", "arguments": {"a": 1, "b": 2}}]}
DONE = {"text": "Done."}


@pytest.fixture
def runtime(
    database_url: str, redis_space: RedisSpace, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Runtime]:
    made = Runtime(
        Settings(
            database_url=database_url,
            redis_url=redis_space.url,
            redis_prefix=redis_space.prefix,
            tools="tests.scenarios.some_tools",
        )
    )
    claims.register_worker(made.engine, made.worker_id, "this process")
    monkeypatch.setattr(runtimes, "_current", made)
    monkeypatch.setattr(stopping, "this", stopping.Stopping())
    monkeypatch.setattr(stopping.this, "errand", lambda act: act())
    monkeypatch.setattr(db_retry, "STEP_SECONDS", 0.3)
    yield made
    made.close()


@pytest.fixture
def world(runtime: Runtime) -> World:
    return World(runtime.engine)


@pytest.fixture(autouse=True)
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Dispatch]:
    """What is given to the broker."""
    given: list[Dispatch] = []
    monkeypatch.setattr(dispatch, "dispatch", given.append)
    return given


def chat(world: World, *steps: Mapping[str, Any]) -> Subject:
    script = {"turns": [list(steps)]}
    return world.new(model="scripted:inline", options={"extra": {"script": script}})


def run(runtime: Runtime, subject: Subject) -> None:
    take(Context({"id": str(uuid4())}), runtime, subject.id)


def breaking(world: World, table: str, state: str, when: str = "true", times: int = 1000) -> None:
    """Have writes to a table fail, so often."""
    for statement in (
        "CREATE SEQUENCE failures",
        f"""CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF ({when}) AND nextval('failures') <= {times} THEN
                RAISE EXCEPTION 'broken' USING ERRCODE = '{state}';
            END IF; RETURN NEW; END $$""",
        f"""CREATE TRIGGER fail BEFORE INSERT OR UPDATE ON rejoinder.{table}
            FOR EACH ROW EXECUTE FUNCTION fail()""",
    ):
        world.transact(partial(_execute, statement))


def mended(world: World, table: str) -> None:
    world.transact(partial(_execute, f"DROP TRIGGER fail ON rejoinder.{table}"))


def _execute(statement: str, tx: Session) -> None:
    tx.execute(text(statement))


def history(world: World, subject: Subject) -> list[str]:
    rows = world.read(
        "SELECT role FROM rejoinder.messages WHERE chat_id = :c ORDER BY id", c=subject.id
    )
    return [row["role"] for row in rows]


@pytest.mark.parametrize("state", ["40001", "40P01", "53100", "57014", "25006", "55P03"])
def test_a_write_that_fails_for_a_moment_is_repeated(
    runtime: Runtime, world: World, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(db_retry, "STEP_SECONDS", 20.0)
    subject = chat(world, DONE)
    breaking(world, "messages", state, times=2)
    run(runtime, subject)
    assert world.row(subject.id)["status"] == "waiting"
    assert history(world, subject) == ["user", "assistant"]


@pytest.mark.parametrize("state", ["40P01", "53100", "57014", "25006"])
def test_a_chat_whose_write_fails_for_long_is_handed_back_with_its_results(
    runtime: Runtime, world: World, state: str, sent: list[Dispatch]
) -> None:
    subject = chat(world, ADDS, DONE)
    breaking(world, "messages", state, "NEW.role = 'tool'")
    run(runtime, subject)
    row = world.row(subject.id)
    assert row["status"] == "running", "nothing could be written"
    mended(world, "messages")
    runtime.heartbeat.beat_once()
    row = world.row(subject.id)
    assert (row["status"], row["crashes"], row["attempt"]) == ("pending", 0, 0)
    assert row["last_error"] is None
    assert [to.chat_id for to in sent] == [subject.id]
    (call,) = world.read("SELECT state, settled FROM rejoinder.tool_calls")
    assert call == {"state": "finished", "settled": True}, "the tool had finished"
    assert history(world, subject) == ["user", "assistant", "tool"]
    run(runtime, subject)
    assert world.row(subject.id)["status"] == "waiting"
    assert_invariants(world.engine)


def test_what_could_not_be_handed_back_either_is_handed_back_later(
    runtime: Runtime, world: World
) -> None:
    subject = chat(world, ADDS, DONE)
    breaking(world, "messages", "53100", "NEW.role = 'tool'")
    run(runtime, subject)
    with pytest.raises(Exception, match="broken"):
        runtime.heartbeat.beat_once()
    mended(world, "messages")
    runtime.heartbeat.beat_once()
    assert world.row(subject.id)["status"] == "pending"
    assert history(world, subject) == ["user", "assistant", "tool"]


@pytest.mark.parametrize("table", ["messages", "steps", "tool_calls"])
def test_a_chat_whose_answer_can_never_be_stored_ends_in_error(
    runtime: Runtime, world: World, table: str, sent: list[Dispatch]
) -> None:
    subject = chat(world, ADDS, DONE)
    breaking(world, table, "22003")
    run(runtime, subject)
    row = world.row(subject.id)
    assert (row["status"], row["lease_id"]) == ("error", None)
    assert row["last_error"]["kind"] == "generic"
    (turn,) = world.read("SELECT state, error FROM rejoinder.turns")
    assert (turn["state"], turn["error"]["kind"]) == ("failed", "generic")
    assert sent == []
    mended(world, table)
    assert_invariants(world.engine)


def test_a_retry_after_that_does_not_run_again_what_had_started(
    runtime: Runtime, world: World
) -> None:
    subject = chat(world, ADDS, DONE)
    breaking(world, "messages", "22003", "NEW.role = 'tool'")
    run(runtime, subject)
    assert world.row(subject.id)["status"] == "error"
    mended(world, "messages")
    world.do(machine.retry, subject.id)
    run(runtime, subject)
    (call,) = world.read("SELECT state FROM rejoinder.tool_calls")
    assert call["state"] == "unknown", "it had run, and its result is lost"
    assert_invariants(world.engine)


def test_a_chat_whose_retry_can_never_be_stored_ends_in_error(
    runtime: Runtime, world: World
) -> None:
    subject = chat(world, {"fail": [{}]})
    breaking(world, "steps", "22003")
    run(runtime, subject)
    assert world.row(subject.id)["status"] == "error"


@pytest.mark.parametrize("state", ["40P01", "53100", "57014", "25006"])
def test_a_caller_learns_that_the_database_is_not_available(
    world: World, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(db_retry, "SECONDS", 0.3)
    subject = world.chat(Status.WAITING)
    breaking(world, "messages", state)
    with pytest.raises(Unavailable):
        front_door.send_message(chat_id=str(subject.id), content="Hello?")
    mended(world, "messages")
    assert front_door.send_message(chat_id=str(subject.id), content="Hello?")["changed"]


def test_a_command_whose_caller_ignores_results_goes_back_to_the_broker(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(db_retry, "SECONDS", 0.3)
    subject = world.chat(Status.WAITING)
    breaking(world, "messages", "57014")
    task = front_door.send_message
    task.push_request(id=str(uuid4()), ignore_result=True)
    try:
        with pytest.raises(Reject) as given_back:
            task.run(chat_id=str(subject.id), content="Hello?")
    finally:
        task.pop_request()
    assert given_back.value.requeue


def test_an_answer_that_cannot_be_stored_goes_back_to_the_broker(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(db_retry, "SECONDS", 0.3)
    subject = world.chat(Status.SLEEPING)
    breaking(world, "chats", "57014")
    (call,) = world.read("SELECT call_id, external_id FROM rejoinder.tool_calls")
    with pytest.raises(Reject) as given_back:
        callbacks.task_answered.run(42, chat_id=str(subject.id), **call)
    assert given_back.value.requeue


@pytest.mark.parametrize(("state", "times"), [("57014", 1000), ("22003", 1)])
def test_a_stop_whose_last_write_fails_ends_and_keeps_what_can_be_kept(
    runtime: Runtime, world: World, state: str, times: int
) -> None:
    subject = chat(world, ADDS, DONE)
    real = machine.commit

    def stopped_meanwhile(*args: Any, **options: Any) -> Any:
        if world.row(subject.id)["status"] == "running":
            world.do(machine.interrupt, subject.id)
            breaking(world, "messages", state, "NEW.role = 'tool'", times=times)
        return real(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "commit", stopped_meanwhile)
        run(runtime, subject)
    mended(world, "messages")
    runtime.heartbeat.beat_once()
    assert world.row(subject.id)["status"] == "waiting"
    if state == "57014":
        (call,) = world.read("SELECT state, settled FROM rejoinder.tool_calls")
        assert call == {"state": "finished", "settled": True}, "the tool had finished"
    assert_invariants(world.engine)


def test_a_refused_command_that_is_delivered_again_is_refused_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = world.chat(Status.WAITING)
    first = {"result": Rejected("The chat is busy", "wait")}
    monkeypatch.setattr(app.backend, "get_task_meta", lambda _: first)
    task = front_door.send_message
    task.push_request(id=str(uuid4()), delivery_info={"redelivered": True})
    try:
        with pytest.raises(Rejected, match="busy"):
            task.run(chat_id=str(subject.id), content="Hello?")
    finally:
        task.pop_request()
    assert world.row(subject.id)["status"] == "waiting"
