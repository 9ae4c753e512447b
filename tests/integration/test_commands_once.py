"""A command is done once: its Celery task id is its key, and a second delivery changes nothing."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from sqlalchemy import text

from models import claims, machine
from models.sweep import sweep
from rejoinder import requests
from rejoinder.core.errors import Rejected
from rejoinder.core.messages import CallKind, CallPlan
from rejoinder.core.settings import Settings
from rejoinder.core.state import Status
from tasks import app, front_door, stopping
from tasks import runtime as runtimes
from tasks.runtime import Runtime
from tests.chats import DEAD_AFTER, World, call, said
from tests.integration.reading import history, message_id, queued_id
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import RedisSpace


@pytest.fixture
def runtime(
    database_url: str, redis_space: RedisSpace, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Runtime]:
    settings = Settings(
        database_url=database_url, redis_url=redis_space.url, redis_prefix=redis_space.prefix
    )
    made = Runtime(settings)
    claims.register_worker(made.engine, made.worker_id, "this process")
    monkeypatch.setattr(runtimes, "_current", made)
    monkeypatch.setattr(stopping, "this", stopping.Stopping())
    monkeypatch.setattr(app.conf, "broker_url", redis_space.url)
    monkeypatch.setattr(app.conf, "result_backend", redis_space.url)
    yield made
    made.close()


@pytest.fixture
def world(runtime: Runtime) -> World:
    return World(runtime.engine)


def deliver(verb: str, task_id: str, **arguments: Any) -> Any:
    """Run a command as a worker does when its message comes."""
    task = app.tasks[f"rejoinder.{verb}"]
    return task.apply(kwargs=arguments, task_id=task_id).get(disable_sync_subtasks=False)


def asking(world: World, *, approval: bool = False) -> str:
    chat = world.running()
    plan = CallPlan(CallKind.CLIENT, approval=approval)
    fence = world.do(machine.record, chat.held, said("", call()), plans={"call-1": plan}).fence
    world.do(machine.require_action, fence, deadline_seconds=300)
    return str(chat.id)


def busy(world: World) -> dict[str, Any]:
    chat = world.chat(Status.RUNNING, queued=2)
    return {"chat_id": str(chat.id), "queued_id": queued_id(world, "queued 0")}


COMMANDS: dict[str, Callable[[World], dict[str, Any]]] = {
    "create_chat": lambda _: {"content": "hello", "owner": "joe"},
    "send_message": lambda w: {"chat_id": str(w.chat(Status.WAITING).id), "content": "more"},
    "edit_message": lambda w: {
        "chat_id": str(w.chat(Status.WAITING).id),
        "message_id": message_id(w, "hello"),
        "content": "other",
    },
    "interrupt": lambda w: {"chat_id": str(w.chat(Status.RUNNING).id)},
    "promote_queued": busy,
    "delete_queued": busy,
    "submit_tool_results": lambda w: {
        "chat_id": asking(w),
        "results": [{"call_id": "call-1", "content": "found"}],
    },
    "approve": lambda w: {"chat_id": asking(w, approval=True)},
    "deny": lambda w: {"chat_id": asking(w, approval=True)},
    "compact": lambda w: {"chat_id": str(w.chat(Status.WAITING).id)},
    "retry": lambda w: {"chat_id": str(w.chat(Status.ERROR).id)},
    "archive": lambda w: {"chat_id": str(w.chat(Status.WAITING).id)},
    "unarchive": lambda w: {"chat_id": str(w.chat(Status.WAITING, archived=True).id)},
    "set_title": lambda w: {"chat_id": str(w.new().id), "title": "Named"},
    "set_labels": lambda w: {"chat_id": str(w.new().id), "labels": {"a": "b"}},
    "set_budget": lambda w: {"chat_id": str(w.new().id), "budget": {"tokens": 5}},
}


def test_no_command_is_forgotten_here() -> None:
    """What is not a question is a command."""
    ours = {name.removeprefix("rejoinder.") for name in app.tasks if name.startswith("rejoinder.")}
    verbs = {name for name in ours if hasattr(front_door, name)}
    assert {name for name in verbs if not name.startswith(("get_", "list_"))} == set(COMMANDS)


@pytest.mark.parametrize("verb", COMMANDS)
def test_a_command_that_is_delivered_twice_is_done_once(world: World, verb: str) -> None:
    arguments = COMMANDS[verb](world)
    first = deliver(verb, "not a uuid", **arguments)
    assert first["changed"]
    before = world.dump()
    assert deliver(verb, "not a uuid", **arguments) == first
    assert world.dump() == before


@pytest.mark.parametrize("verb", COMMANDS)
def test_a_given_key_wins_over_the_task_id(world: World, verb: str) -> None:
    arguments = {**COMMANDS[verb](world), "key": "mine"}
    first = deliver(verb, "one", **arguments)
    before = world.dump()
    assert deliver(verb, "two", **arguments) == first
    assert world.dump() == before


def test_the_first_answer_stays_the_first_answer(world: World) -> None:
    arguments = COMMANDS["create_chat"](world)
    first = deliver("create_chat", "id", **arguments)
    chat_id = first["chat_id"]
    deliver("interrupt", "other", chat_id=chat_id)
    deliver("archive", "another", chat_id=chat_id)
    assert deliver("create_chat", "id", **arguments) == first


def test_two_sends_with_ids_of_their_own_are_two_messages(world: World) -> None:
    chat = world.chat(Status.WAITING)
    for task_id in ("one", "two"):
        deliver("send_message", task_id, chat_id=str(chat.id), content="more")
    assert history(world, chat.id)[-1] == "user: more"
    assert world.row(chat.id)["queue_length"] == 1


def test_a_key_stands_for_one_request(world: World) -> None:
    chat = world.running()
    deliver("set_title", "id", chat_id=str(chat.id), title="One", key="k")
    before = world.dump()
    for verb, more in (
        ("set_title", {"title": "Two"}),
        ("set_labels", {"labels": {"a": "b"}}),
        ("interrupt", {}),
    ):
        with pytest.raises(Rejected, match="used for a different request: repeat the same"):
            deliver(verb, "id", chat_id=str(chat.id), key="k", **more)
    assert world.dump() == before


@pytest.mark.usefixtures("runtime")
def test_another_owner_may_use_the_same_key() -> None:
    ours, theirs = (deliver("create_chat", "id", content="x", owner=who) for who in ("a", "b"))
    assert ours["chat_id"] != theirs["chat_id"]


def test_an_id_of_any_length_is_a_key(world: World) -> None:
    ids = ("x" * 1000, "x" * 1001)
    chats = [deliver("create_chat", each, content="x", owner="o")["chat_id"] for each in ids * 2]
    assert chats[0] != chats[1]
    assert chats[:2] == chats[2:]
    assert len(world.read("SELECT FROM rejoinder.chats")) == len(ids)


def test_a_refusal_uses_up_no_key(world: World) -> None:
    chat = world.running()
    ask = {"chat_id": str(chat.id), "content": "more", "when_busy": "reject"}
    with pytest.raises(Rejected):
        deliver("send_message", "id", **ask)
    assert world.dump()["idempotency_keys"] == []
    world.do(machine.finish_turn, chat.held)
    assert deliver("send_message", "id", **ask)["changed"]


@pytest.mark.parametrize("verb", ["create_chat", "send_message", "submit_tool_results"])
def test_of_two_deliveries_at_the_same_time_the_second_waits_and_gives_the_first_answer(
    world: World, runtime: Runtime, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is held up before its commit until the second waits for it."""
    arguments = COMMANDS[verb](world)
    at_commit, go_on = threading.Event(), threading.Event()
    effects = machine.change.Change.effects

    def slowly(*args: Any, **options: Any) -> Any:
        done = effects(*args, **options)
        if not at_commit.is_set():
            at_commit.set()
            assert go_on.wait(10)
        return done

    monkeypatch.setattr(machine.change.Change, "effects", slowly)
    waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = :name"
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(deliver, verb, "id", **arguments)
        assert at_commit.wait(10)
        second = pool.submit(deliver, verb, "id", **arguments)
        wait_until(lambda: world.read(waiting, name=runtime.engine.url.database))
        go_on.set()
        assert second.result() == first.result()
    assert len(world.dump()["idempotency_keys"]) == 1


def test_a_command_whose_commit_went_unanswered_is_not_done_again(
    world: World, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection breaks between the commit and the answer to it: nobody knows, and retries."""
    arguments = COMMANDS["send_message"](world)
    commit, broken = runtime.engine.dialect.do_commit, list[bool]()

    def breaking(connection: Any) -> None:
        commit(connection)
        if not broken:
            broken.append(True)
            with world.engine.connect() as other:
                pid = connection.get_backend_pid()
                other.execute(text(f"SELECT pg_terminate_backend({pid}, 5000)"))
            connection.cursor().execute("SELECT 1")  # finds it gone

    monkeypatch.setattr(runtime.engine.dialect, "do_commit", breaking)
    assert deliver("send_message", "id", **arguments)["changed"]
    assert broken
    rows = world.read("SELECT FROM rejoinder.messages WHERE role = 'user'")
    assert len(rows) == 2


def test_old_keys_are_purged_in_batches(world: World) -> None:
    for number in range(25):
        deliver("create_chat", str(uuid4()), content=f"{number}", owner="o")
    with world.engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE rejoinder.idempotency_keys SET created_at = now() - interval '8 days'"
                " WHERE key <> (SELECT max(key) FROM rejoinder.idempotency_keys)"
            )
        )
    week = timedelta(days=7)
    sweep(world.engine, dead_after=DEAD_AFTER, keep_keys=week, batch=10, most=2)
    assert len(world.dump()["idempotency_keys"]) == 5
    sweep(world.engine, dead_after=DEAD_AFTER, keep_keys=week, batch=10, most=2)
    assert len(world.dump()["idempotency_keys"]) == 1


def test_every_request_of_a_command_takes_a_key() -> None:
    for name in ("Interrupt", "Approve", "SetTitle", "QueuedMessage", "EditMessage", "SetBudget"):
        assert "key" in getattr(requests, name).model_fields
