"""Stop, in every way that people and programs can ask for it, on threads and on prefork."""

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest
import redis

from rejoinder.client import Turn
from rejoinder.core.effects import Cause
from scripts.fleet import ROOT
from scripts.stack import free_port
from tasks.hints import channel_of
from tests.integration.invariants import assert_invariants
from tests.scenarios.conftest import Stage
from tests.scenarios.phases import WORDS
from tests.waiting import wait_until

LONG = 60.0
SLOTS = 8  # of each of the two workers of the stage


def start(stage: Stage, *steps: Mapping[str, Any], **more: Any) -> Turn:
    options = {"extra": {"script": {"turns": [list(steps), [{"text": "Next."}]]}}}
    return stage.client.create_chat(
        "Go.", owner="joe", model="scripted:inline", options=options, **more
    )


def talking(stage: Stage, **more: Any) -> Turn:
    """A chat in the middle of a long answer."""
    turn = start(stage, {"text": WORDS, "pace": 1.0}, **more)
    for event in stage.client.stream(turn.chat_id):
        if event is not None and event.kind == "part":
            return turn
    raise AssertionError


def status(stage: Stage, turn: Turn) -> str:
    return str(stage.world.row(UUID(turn.chat_id))["status"])


def said(stage: Stage, turn: Turn) -> list[str]:
    messages = stage.client.get_messages(turn.chat_id)["messages"]
    return [m["parts"][0].get("text", m["parts"][0]["type"]) for m in messages]


def assert_stopped(stage: Stage, turn: Turn) -> None:
    answer = stage.client.result(turn.turn_id).get(timeout=LONG, propagate=False)
    wait_until(lambda: status(stage, turn) == "waiting", LONG)
    state = "SELECT state FROM rejoinder.turns WHERE id = :t"
    assert [row["state"] for row in stage.world.read(state, t=turn.turn_id)] == ["interrupted"]
    words = said(stage, turn)[1]
    assert WORDS.startswith(words.strip())
    assert answer


def test_the_client_waits_until_the_chat_has_come_to_rest(stage: Stage) -> None:
    turn = talking(stage)
    assert stage.client.interrupt(turn.chat_id, wait=True) == "waiting"
    assert_stopped(stage, turn)
    assert stage.client.send_message(turn.chat_id, "And?").get(timeout=LONG)["text"] == "Next."


def test_a_message_that_interrupts_comes_after_what_was_said(stage: Stage) -> None:
    turn = talking(stage)
    other = stage.client.send_message(turn.chat_id, "No, this.", when_busy="interrupt")
    assert other.get(timeout=LONG)["text"] == "Next."
    _, partial, question, answer = said(stage, turn)
    assert WORDS.startswith(partial.strip())
    assert (question, answer) == ("No, this.", "Next.")


def test_a_late_stop_does_not_hit_the_next_turn(stage: Stage) -> None:
    first = start(stage, {"text": "One."})
    first.get(timeout=LONG)
    second = stage.client.send_message(first.chat_id, "Two?")
    stage.client.result(first.turn_id).revoke(terminate=True)
    stage.client.interrupt(first.chat_id, turn_id=first.turn_id)
    assert second.get(timeout=LONG)["state"] == "finished"


def test_revoking_a_queued_turn_takes_its_message_out_of_the_queue(stage: Stage) -> None:
    first = talking(stage)
    queued = stage.client.send_message(first.chat_id, "Then this.")
    stage.client.result(queued.turn_id).revoke()
    wait_until(lambda: stage.client.get_chat(first.chat_id)["queue"] == [], LONG)
    assert status(stage, first) == "running"
    stage.client.interrupt(first.chat_id, wait=True)
    assert said(stage, first)[0] == "Go."
    assert len(said(stage, first)) == 2


def test_the_command_line_of_celery_revokes(stage: Stage) -> None:
    turn = talking(stage)
    step_id = stage.client.get_chat(turn.chat_id)["step_id"]
    celery = [sys.executable, "-m", "celery", "-A", "tasks", "control"]
    subprocess.run(
        [*celery, "terminate", "SIGKILL", step_id],
        env=stage.fleet.env,
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=60,
    )
    assert_stopped(stage, turn)
    stage.fleet.check()  # nobody was killed


def test_with_every_slot_busy_a_stop_still_lands(stage: Stage) -> None:
    turns = [start(stage, {"text": WORDS, "pace": 1.0}) for _ in range(2 * SLOTS)]
    wait_until(lambda: all(status(stage, turn) == "running" for turn in turns), LONG)
    waiting = stage.client.app.send_task(
        "rejoinder.create_chat",
        kwargs={"content": "hi", "owner": "joe"},
        queue="rejoinder.control",
    )
    for turn in turns:  # by Celery's control command, which needs no slot
        stage.client.result(turn.turn_id).revoke()
    wait_until(lambda: all(status(stage, turn) == "waiting" for turn in turns), LONG)
    last = waiting.get(timeout=LONG)
    assert stage.client.result(last["turn_id"]).get(timeout=LONG)["text"] == "You said: hi"
    assert_invariants(stage.world.engine)


def test_an_interrupted_parent_stops_its_children(stage: Stage) -> None:
    parent = talking(stage)
    child = talking(stage, parent_id=parent.chat_id)
    grandchild = talking(stage, parent_id=child.chat_id)
    stranger = talking(stage)
    stage.client.interrupt(parent.chat_id, wait=True)
    for turn in (parent, child, grandchild):
        assert_stopped(stage, turn)
    assert status(stage, stranger) == "running"
    stage.client.interrupt(stranger.chat_id, wait=True)


def test_a_parent_can_be_stopped_without_its_children(stage: Stage) -> None:
    parent = talking(stage)
    child = talking(stage, parent_id=parent.chat_id)
    stage.client.interrupt(parent.chat_id, children=False, wait=True)
    assert status(stage, child) == "running"
    stage.client.interrupt(child.chat_id, wait=True)


def test_an_old_or_broken_hint_hits_nobody(stage: Stage) -> None:
    turn = talking(stage)
    row = stage.world.row(UUID(turn.chat_id))
    channel = channel_of("rejoinder:", row["worker_id"])
    with redis.Redis.from_url(stage.redis_url) as connection:
        old = json.dumps(["00000000-0000-7000-8000-000000000000", Cause.INTERRUPT])
        for body in (old, "nonsense", "[1]", json.dumps([str(row["lease_id"]), "because"])):
            assert connection.publish(channel, body) == 1
    assert status(stage, turn) == "running"
    assert stage.client.interrupt(turn.chat_id, wait=True) == "waiting"


@pytest.fixture(scope="module")
def flower(stage: Stage) -> Iterator[str]:
    with free_port() as port:
        member = stage.fleet.flower(port)
        stage.fleet.wait_until_ready(member)
        yield f"http://127.0.0.1:{port}"
        member.stop()
        stage.fleet.members.remove(member)


def ask(method: str, url: str) -> Any:
    request = urllib.request.Request(url, method=method)  # noqa: S310  # our own server
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
        return json.loads(answer.read())


def test_flowers_terminate_is_a_stop(stage: Stage, flower: str) -> None:
    turn = talking(stage)
    step_id = stage.client.get_chat(turn.chat_id)["step_id"]
    ask("POST", f"{flower}/api/task/revoke/{step_id}?terminate=true")
    assert_stopped(stage, turn)
    info = f"{flower}/api/task/info/{step_id}"

    def is_revoked() -> bool:
        with suppress(urllib.error.HTTPError):  # it has not heard of the task yet
            return bool(ask("GET", info)["state"] == "REVOKED")
        return False

    wait_until(is_revoked, 10, "REVOKED")
    stage.fleet.check()


def test_nothing_is_left_behind(stage: Stage) -> None:
    wait_until(
        lambda: (
            not stage.world.read(
                "SELECT 1 FROM rejoinder.chats WHERE status NOT IN ('waiting', 'error')"
            )
        ),
        LONG,
    )
    assert_invariants(stage.world.engine)
    logs = stage.logs()
    assert "Traceback" not in logs
    assert "the step failed" not in logs
    stage.fleet.check()
