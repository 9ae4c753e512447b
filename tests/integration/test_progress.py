"""A chat that makes no progress over many claims is stopped, whatever the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from celery.app.task import Context
from sqlalchemy import text

from models import claims, machine
from rejoinder.core.limits import MAX_CLAIMS_WITHOUT_PROGRESS
from rejoinder.core.messages import CallKind
from rejoinder.core.parts import ToolResult
from rejoinder.core.settings import Settings
from tasks import db_retry, dispatch, stopping
from tasks import runtime as runtimes
from tasks.runtime import Runtime
from tasks.step import take
from tests.chats import World, call, said
from tests.integration.reading import sql

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.chats import Subject
    from tests.conftest import RedisSpace


@pytest.fixture
def runtime(
    database_url: str, redis_space: RedisSpace, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Runtime]:
    made = Runtime(
        Settings(
            database_url=database_url,
            redis_url=redis_space.url,
            redis_prefix=redis_space.prefix,
            model="scripted:echo",
            title_model="off",
        )
    )
    claims.register_worker(made.engine, made.worker_id, "this process")
    monkeypatch.setattr(runtimes, "_current", made)
    monkeypatch.setattr(stopping, "this", stopping.Stopping())
    monkeypatch.setattr(dispatch, "dispatch", lambda _: None)
    monkeypatch.setattr(db_retry, "STEP_SECONDS", 0.0)
    yield made
    made.close()


@pytest.fixture
def world(runtime: Runtime) -> World:
    return World(runtime.engine)


def count(world: World, chat: Subject) -> int:
    return int(world.row(chat.id)["claims_since_progress"])


def step(runtime: Runtime, world: World, chat: Subject) -> None:
    """A worker takes the chat, and its heart hands back what that leaves."""
    take(Context(id=str(world.row(chat.id)["step_id"] or uuid4())), runtime, chat.id)
    for lease in claims.heartbeat(runtime.engine, runtime.worker_id) or ():
        runtime.heartbeat._hand_back(lease)


def test_a_store_that_always_fails_is_asked_so_often_and_no_more(
    runtime: Runtime, world: World
) -> None:
    with world.engine.begin() as connection:
        connection.execute(
            text("""
            CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS
                $$ BEGIN RAISE 'no space left' USING ERRCODE = 'disk_full'; END $$;
            """)
        )
    chat = world.new()
    sql(
        world,
        "CREATE TRIGGER no_space BEFORE INSERT ON rejoinder.messages EXECUTE FUNCTION full_disk()",
    )
    for taken in range(1, MAX_CLAIMS_WITHOUT_PROGRESS + 1):
        step(runtime, world, chat)
        assert (world.row(chat.id)["status"], count(world, chat)) == ("pending", taken)
    asked = world.row(chat.id)["used_calls"]
    step(runtime, world, chat)
    row = world.row(chat.id)
    assert (row["status"], row["last_error"]["kind"]) == ("error", "no_progress")
    assert row["used_calls"] == asked, "the model was not asked again"
    assert row["claims_since_progress"] == 0
    sql(world, "DROP TRIGGER no_space ON rejoinder.messages")
    world.do(machine.retry, chat.id)
    step(runtime, world, chat)
    assert world.row(chat.id)["status"] == "waiting"


def test_an_orderly_release_takes_its_claim_back_and_others_do_not(world: World) -> None:
    chat = world.new()
    world.do(machine.release, world.claim(chat.id))
    assert count(world, chat) == 0
    world.do(machine.release, world.claim(chat.id), counted=True)
    assert count(world, chat) == 1
    world.do(machine.recover, chat.id, world.claim(chat.id).lease_id)
    assert count(world, chat) == 2
    world.do(machine.release, world.claim(chat.id))
    assert count(world, chat) == 2


def test_what_moves_the_turn_forward_counts_from_the_start(world: World) -> None:
    def tried() -> Subject:
        chat = world.new()
        for _ in range(3):
            world.do(machine.release, world.claim(chat.id), counted=True)
        chat.fence = world.claim(chat.id)
        assert count(world, chat) == 4
        return chat

    chat = tried()
    fence = world.do(machine.record, chat.held, said("Hm.", call()), start=["call-1"]).fence
    assert count(world, chat) == 0
    world.do(machine.commit, fence, results=[ToolResult("call-1", "found")])
    assert count(world, chat) == 0
    chat = tried()
    world.do(machine.retry_later, chat.held, delay_seconds=0, retry_state={"kind": "timeout"})
    assert count(world, chat) == 0
    chat = tried()
    world.do(machine.finish_turn, chat.held, message=said("Done."))
    assert count(world, chat) == 0
    chat = world.asking(kind=CallKind.CLIENT)
    sql(world, "UPDATE rejoinder.chats SET claims_since_progress = 7 WHERE id = :id", id=chat.id)
    world.known.clear()
    world.do(machine.require_action, chat.held, deadline_seconds=300)
    assert count(world, chat) == 0
