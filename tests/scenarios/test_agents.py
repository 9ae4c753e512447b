"""Sub-agents through real workers: reports, failures, patience, stops, messages, limits."""

import re
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from rejoinder.client import Turn
from rejoinder.embedded import Servers
from tests.integration.invariants import assert_invariants
from tests.owners import ROOT
from tests.scenarios.conftest import Stage
from tests.scenarios.delegating import (
    SAY,
    acting,
    again,
    calling,
    delegate,
    outcome,
    results,
    spawning,
    waiting,
)
from tests.scenarios.plays import sweeping
from tests.waiting import wait_until

ENDLESS = {"text": "One. Two. Three. Four.", "hang_after": 2}
LONG = 60.0


def children(stage: Stage, turn: Turn) -> list[dict[str, Any]]:
    return stage.world.read(
        "SELECT * FROM rejoinder.chats WHERE parent_id = :id ORDER BY title", id=turn.chat_id
    )


def statuses(stage: Stage, turn: Turn) -> list[str]:
    return [child["status"] for child in children(stage, turn)]


def test_a_parent_gets_the_reports_of_its_children(stage: Stage, tmp_path: Path) -> None:
    one = acting(tmp_path, calling("add", a=1, b=2), {"text": "It is {result}."})
    two = acting(tmp_path, {"text": "Two is done."})
    parent = acting(tmp_path, spawning(one, two), waiting(2), SAY)
    turn = delegate(stage.client, parent, system="Be kind.")
    told = outcome(turn)
    assert not told["timed_out"]
    assert [agent["report"] for agent in told["agents"]] == ["It is 3.", "Two is done."]
    assert [agent["title"] for agent in told["agents"]] == ["nr 0", "nr 1"]
    assert [agent["status"] for agent in told["agents"]] == ["waiting", "waiting"]
    born = {str(child["id"]): child for child in children(stage, turn)}
    assert {agent["chat_id"] for agent in told["agents"]} == set(born)
    for child in born.values():
        assert child["owner"] == "joe"
        assert child["options"] == stage.world.row(UUID(turn.chat_id))["options"]
        (system, *_) = stage.world.read(
            "SELECT parts FROM rejoinder.messages WHERE chat_id = :id ORDER BY id", id=child["id"]
        )
        kind, delegated = (part["text"] for part in system["parts"])
        assert kind == "Be kind."
        assert "your report" in delegated


def test_a_failed_child_is_told_with_its_error(stage: Stage, tmp_path: Path) -> None:
    failing = acting(tmp_path, {"fail": [{"kind": "auth", "message": "The key is wrong."}]})
    good = acting(tmp_path, {"text": "Fine."})
    turn = delegate(stage.client, acting(tmp_path, spawning(failing, good), waiting(2), SAY))
    bad, fine = outcome(turn)["agents"]
    assert (bad["status"], bad["report"]) == ("error", None)
    assert bad["error"] == {"kind": "auth", "message": "The key is wrong.", "retryable": False}
    assert (fine["status"], fine["report"]) == ("waiting", "Fine.")
    assert "error" not in fine


def test_a_child_that_takes_too_long_is_told_as_such_and_goes_on(
    stage: Stage, servers: Servers, tmp_path: Path
) -> None:
    slow = acting(tmp_path, ENDLESS)
    quick = acting(tmp_path, {"text": "Fine."})
    parent = acting(tmp_path, spawning(slow, quick), waiting(2, timeout_seconds=1), SAY)
    turn = delegate(stage.client, parent)
    with sweeping(servers, every=0.5):
        told = outcome(turn)
    late, fine = told["agents"]
    assert told["timed_out"]
    assert (late["status"], late["timed_out"]) == ("running", True)
    assert fine["report"] == "Fine."
    assert "timed_out" not in fine
    assert statuses(stage, turn) == ["running", "waiting"]
    stage.client.interrupt(turn.chat_id)
    wait_until(lambda: statuses(stage, turn) == ["waiting", "waiting"])


def test_to_stop_a_parent_that_sleeps_stops_its_children(stage: Stage, tmp_path: Path) -> None:
    slow = acting(tmp_path, ENDLESS)
    turn = delegate(stage.client, acting(tmp_path, spawning(slow, slow), waiting(2), SAY))
    _until_asleep(stage, turn)
    stage.client.interrupt(turn.chat_id, wait=True)
    assert turn.get(timeout=LONG)["state"] == "interrupted"
    wait_until(lambda: statuses(stage, turn) == ["waiting", "waiting"])
    assert "stopped the turn" in results(stage.client, turn.chat_id)[-1]
    assert stage.client.get_chat(turn.chat_id)["status"] == "waiting"


@pytest.mark.parametrize("how", ["interrupt", "edit", "promote", "revoke"])
def test_a_turn_that_gives_way_takes_its_children_along(
    stage: Stage, tmp_path: Path, how: str
) -> None:
    slow = acting(tmp_path, ENDLESS)
    parent = acting(tmp_path, spawning(slow), waiting(1), SAY, later=[[{"text": "Next."}]])
    turn = delegate(stage.client, parent)
    _until_asleep(stage, turn)
    client = stage.client
    match how:
        case "interrupt":
            client.send_message(turn.chat_id, "Now this.", when_busy="interrupt")
        case "edit":
            (first, *_) = client.get_messages(turn.chat_id)["messages"]
            client.edit_message(turn.chat_id, first["id"], "Now this.", model="scripted:echo")
        case "promote":
            sent = client.send_message(turn.chat_id, "Now this.")
            assert sent.queued_id is not None
            client.promote_queued(turn.chat_id, sent.queued_id)
        case _:
            client.app.control.revoke(turn.turn_id, terminate=True)
    wait_until(lambda: statuses(stage, turn) == ["waiting"])
    wait_until(lambda: client.get_chat(turn.chat_id)["status"] == "waiting")
    answers = [m for m in client.get_messages(turn.chat_id)["messages"] if m["role"] == "assistant"]
    last = {"interrupt": "Next.", "edit": "You said: Now this.", "promote": "Next."}
    if how in last:
        assert answers[-1]["parts"][0]["text"] == last[how]


def test_a_child_is_sent_more_work_and_waited_for_again(stage: Stage, tmp_path: Path) -> None:
    child = acting(tmp_path, {"text": "First."}, later=[[{"text": "Then: {user}"}]])
    more = calling("message_agent", chat_id="{result:0.agents.0.chat_id}", message="And this?")
    parent = acting(tmp_path, spawning(child), waiting(1), more, again(), SAY)
    turn = delegate(stage.client, parent)
    assert outcome(turn)["agents"][0]["report"] == "Then: And this?"
    _, first, sent, _ = results(stage.client, turn.chat_id)
    assert first["agents"][0]["report"] == "First."
    assert (sent["queued"], sent["interrupted"]) == (False, False)


def test_a_message_to_a_busy_child_waits_or_stops_it(stage: Stage, tmp_path: Path) -> None:
    child = acting(tmp_path, ENDLESS, later=[[{"text": "Then: {user}"}]] * 2)
    to = {"chat_id": "{result:0.chat_id}"}
    parent = acting(
        tmp_path,
        spawning(child),
        calling("message_agent", message="Later.", **to),
        calling("message_agent", message="Now.", interrupt=True, **to),
        again(),
        SAY,
    )
    turn = delegate(stage.client, parent)
    assert outcome(turn)["agents"][0]["report"] == "Then: Now."
    _, queued, stopped, _ = results(stage.client, turn.chat_id)
    assert (queued["queued"], queued["interrupted"]) == (True, False)
    assert stopped["interrupted"]
    (child_row,) = children(stage, turn)
    said = stage.client.get_messages(child_row["id"])["messages"]
    users = [m["parts"][0]["text"] for m in said if m["role"] == "user"]
    assert users == ["Do your part.", "Later.", "Now."], "in the order in which they were sent"


def test_a_child_is_stopped_and_listed(stage: Stage, tmp_path: Path) -> None:
    slow = acting(tmp_path, ENDLESS)
    stop = calling("interrupt_agent", chat_id="{result:0.chat_id}")
    listing = calling("list_agents", limit=1)
    turn = delegate(
        stage.client,
        acting(tmp_path, spawning(slow, slow), stop, again(), listing, stop, SAY),
    )
    turn.get(timeout=LONG)
    first, second, stopped, waited, listed, refused = results(stage.client, turn.chat_id)
    assert stopped["interrupted"]
    assert stopped["chat_id"] == first["chat_id"]
    assert waited["agents"][0]["interrupted"]
    assert (listed["total"], listed["has_more"], len(listed["agents"])) == (2, True, 1)
    assert listed["agents"][0]["chat_id"] in (first["chat_id"], second["chat_id"])
    assert "Nobody" not in refused
    stage.client.interrupt(turn.chat_id)
    wait_until(lambda: statuses(stage, turn) == ["waiting", "waiting"])


def test_a_wait_among_other_calls_is_answered_after_what_people_are_asked(
    stage: Stage, tmp_path: Path
) -> None:
    quick = acting(tmp_path, {"text": "Fine."})
    wait = waiting(1)["calls"][0]
    others = [{"name": "ask_user", "arguments": {}}, {"name": "add", "arguments": {"a": 1, "b": 2}}]
    parent = acting(tmp_path, spawning(quick), {"calls": [wait, *others]}, {"text": "{results}"})
    options = {"client_tools": [{"name": "ask_user"}], "approve": ["wait_agent"]}
    turn = delegate(stage.client, parent, options=options)
    client = stage.client
    wait_until(lambda: client.get_chat(turn.chat_id)["status"] == "requires_action")
    open_calls = {c["name"]: c["call_id"] for c in client.get_chat(turn.chat_id)["open_calls"]}
    assert set(open_calls) == {"wait_agent", "ask_user"}
    client.submit_tool_results(
        turn.chat_id, [{"call_id": open_calls["ask_user"], "content": "Blue."}]
    )
    assert client.get_chat(turn.chat_id)["status"] == "requires_action"
    client.approve(turn.chat_id)
    assert turn.get(timeout=LONG)["state"] == "finished"
    _, waited, asked, added = results(client, turn.chat_id)
    assert waited["agents"][0]["report"] == "Fine."
    assert (asked, added) == ("Blue.", 3)


def test_only_own_agents_can_be_addressed(stage: Stage, tmp_path: Path) -> None:
    stranger = stage.client.create_chat("hi", owner="joe", model="scripted:echo")
    stranger.get(timeout=LONG)
    wrong = [stranger.chat_id, str(uuid4()), "nonsense"]
    calls = [
        {"name": name, "arguments": {"chat_id": each, **more}}
        for each in wrong
        for name, more in (
            ("wait_agent", {}),
            ("message_agent", {"message": "Boo."}),
            ("interrupt_agent", {}),
        )
    ]
    calls += [
        {"name": "wait_agent", "arguments": {}},
        {"name": "wait_agent", "arguments": {"ids": []}},
        {"name": "wait_agent", "arguments": {"ids": "all", "timeout_seconds": "long"}},
        {"name": "spawn_agent", "arguments": {"prompt": "  "}},
        {"name": "spawn_agent", "arguments": {"prompt": "Go.", "model": "nobody:model"}},
    ]
    turn = delegate(stage.client, acting(tmp_path, {"calls": calls}, {"text": "Well."}))
    assert turn.get(timeout=LONG)["text"] == "Well."
    told = results(stage.client, turn.chat_id)
    assert len(told) == len(calls)
    assert all("No agent of yours" in text for text in told[:6])
    assert all("not valid" in text for text in told[6:9])
    assert "Nobody was named" in told[9]
    assert "not valid" in told[10]
    assert "not valid" in told[11]
    assert "empty" in told[12]
    assert "provider" in told[13]
    assert len(stage.client.get_messages(stranger.chat_id)["messages"]) == 2


def test_a_chat_cannot_wait_for_itself(stage: Stage, tmp_path: Path) -> None:
    waits = [calling("wait_agent", chat_id="{user}"), {"text": "{result}"}]
    turn = delegate(stage.client, acting(tmp_path, {"text": "Yes?"}, later=[waits]))
    turn.get(timeout=LONG)
    answer = stage.client.send_message(turn.chat_id, turn.chat_id).get(timeout=LONG)
    assert "No agent of yours" in answer["text"]


def test_a_child_has_no_agents_and_a_chat_without_the_option_has_none(
    stage: Stage, tmp_path: Path
) -> None:
    child = acting(tmp_path, spawning("scripted:echo"), {"text": "{result}"})
    turn = delegate(stage.client, acting(tmp_path, spawning(child), waiting(1), SAY))
    assert "There is no tool spawn_agent" in outcome(turn)["agents"][0]["report"]
    alone = stage.client.create_chat("Go.", owner="joe", model=child)
    assert "There is no tool spawn_agent" in alone.get(timeout=LONG)["text"]


def test_no_more_agents_at_once_than_allowed(stage: Stage, tmp_path: Path) -> None:
    slow = acting(tmp_path, ENDLESS)
    turn = delegate(stage.client, acting(tmp_path, spawning(*[slow] * 11), {"text": "Well."}))
    assert turn.get(timeout=LONG)["text"] == "Well."
    told = results(stage.client, turn.chat_id)
    refused = [text for text in told if isinstance(text, str)]
    assert len(refused) == 1
    assert "10 agents of one chat are at work" in refused[0]
    assert len(children(stage, turn)) == 10
    stage.client.interrupt(turn.chat_id)
    wait_until(lambda: set(statuses(stage, turn)) == {"waiting"}, 20)


def test_the_example_of_the_page_runs(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "agents.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    example = example.replace("redis://…", stage.redis_url)
    exec(re.sub(r'"anthropic:[^"]*"', '"scripted:agents-demo"', example), {})  # noqa: S102  # ours
    said = capsys.readouterr().out
    assert "One reports: I found this: Is it worth to move our shop" in said
    assert "What speaks for? waiting\n" in said
    assert "What speaks against? waiting\n" in said


def test_nothing_is_left_behind(stage: Stage) -> None:
    assert_invariants(stage.world.engine)
    assert "the step failed" not in stage.logs()
    assert "Could not publish" not in stage.logs()


def _until_asleep(stage: Stage, turn: Turn) -> None:
    wait_until(
        lambda: (
            stage.world.row(UUID(turn.chat_id))["status"] == "sleeping"
            and set(statuses(stage, turn)) == {"running"}
        ),
        30,
        "a sleeping parent with busy children",
    )
