"""Chats that wait for people and for their app: client-side tools and approvals, end to end."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rejoinder.client import Turn
from rejoinder.core.errors import Rejected
from tests.integration.invariants import assert_invariants
from tests.owners import ROOT
from tests.programs import program
from tests.scenarios.bank import LONG, Bank, ask, together, wanted
from tests.waiting import wait_until

DONE = {"text": "Done: {results}"}
WHERE = {"name": "where", "description": "Where the user is.", "schema": {"type": "object"}}


def answer(call_id: str, content: Any) -> dict[str, Any]:
    return {"call_id": call_id, "content": content}


def two_asked(bank: Bank, **more: Any) -> Turn:
    calls = together(
        wanted("where", call_id="a"), wanted("add", a=1, b=2), wanted("where", call_id="b")
    )
    turn = bank.start(calls, DONE, client_tools=[{**WHERE, **more}])
    bank.wait_for(turn, "requires_action")
    return turn


# -- client-side tools ----------------------------------------------------------------------------


def test_the_app_answers_its_own_tools_while_no_worker_waits(bank: Bank) -> None:
    turn = two_asked(bank)
    chat = bank.chat(turn)
    assert chat["action"] == "calls"
    assert chat["deadline"]
    asked = [(c["call_id"], c["kind"], c["approval"]) for c in chat["open_calls"]]
    assert asked == [("a", "client", None), ("b", "client", None)]
    assert all(call["deadline"] for call in chat["open_calls"])
    assert bank.house.row(turn)["worker_id"] is None
    bank.house.client.submit_tool_results(turn.chat_id, [answer("b", {"x": 1}), answer("a", "A")])
    assert turn.get(timeout=LONG)["text"] == 'Done: A\n3\n{"x": 1}'
    assert bank.chat(turn)["action"] is None
    assert_invariants(bank.house.world.engine)


def test_readers_are_told_what_is_asked_also_those_that_come_later(bank: Bank) -> None:
    turn = two_asked(bank)
    for _ in range(2):
        for event in bank.house.client.follow(turn.chat_id):
            if event is not None and event.kind == "action_required":
                assert [c["call_id"] for c in event.data["calls"]] == ["a", "b"]
                assert [c["approval"] for c in event.data["calls"]] == [False, False]
                break
    bank.house.client.interrupt(turn.chat_id, wait=True)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ([answer("a", 1)], "missing 'b'"),
        ([answer("a", 1), answer("b", 2), answer("c", 3)], "unexpected 'c'"),
        ([answer("a", 1), answer("a", 2), answer("b", 3)], "twice 'a'"),
    ],
)
def test_results_that_do_not_fit_are_refused_with_what_to_do(
    bank: Bank, given: list[dict[str, Any]], complaint: str
) -> None:
    turn = two_asked(bank)
    with pytest.raises(Rejected, match=complaint) as refusal:
        bank.house.client.submit_tool_results(turn.chat_id, given)
    assert "give one result for each call" in refusal.value.advice
    assert bank.chat(turn)["status"] == "requires_action"
    bank.house.client.interrupt(turn.chat_id, wait=True)


def test_of_two_that_answer_at_once_one_wins(bank: Bank) -> None:
    turn = two_asked(bank)

    def submit(content: str) -> str | None:
        try:
            results = [answer("a", content), answer("b", content)]
            bank.house.client.submit_tool_results(turn.chat_id, results)
        except Rejected:
            return None
        return content

    with ThreadPoolExecutor(2) as pool:
        won = [who for who in pool.map(submit, ["left", "right"]) if who]
    assert len(won) == 1
    turn.get(timeout=LONG)
    assert [r["content"] for r in bank.results(turn)] == [won[0], "3", won[0]]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"default": {"place": "nowhere"}}, {"place": "nowhere"}),
        ({}, "No answer came before the deadline."),
    ],
)
def test_nobody_answers_in_time(bank: Bank, more: dict[str, Any], told: Any) -> None:
    turn = two_asked(bank, seconds=0.5, **more)
    bank.sweep_until(turn, "waiting")
    first, _, last = bank.results(turn)
    assert first["content"] == last["content"] == told
    assert first["is_error"] is (not more)
    with pytest.raises(Rejected):
        bank.house.client.submit_tool_results(turn.chat_id, [answer("a", 1), answer("b", 2)])


def test_a_tool_that_the_app_declared_wins_over_a_workers(bank: Bank) -> None:
    turn = bank.start(ask("add", a=1, b=2), DONE, client_tools=[{"name": "add"}], approval="all")
    (call,) = bank.wait_for(turn, "requires_action")["open_calls"]
    assert (call["kind"], call["approval"]) == ("client", None)
    bank.house.client.submit_tool_results(turn.chat_id, [answer(call["call_id"], "twelve")])
    assert turn.get(timeout=LONG)["text"] == "Done: twelve"


def test_a_message_an_edit_and_a_stop_while_it_waits(bank: Bank) -> None:
    client = bank.house.client
    queued = two_asked(bank)
    more = client.send_message(queued.chat_id, "And also?")
    assert more.queued_id is not None
    client.submit_tool_results(queued.chat_id, [answer("a", 1), answer("b", 2)])
    assert queued.get(timeout=LONG)["state"] == "finished"
    wait_until(lambda: bank.house.row(queued)["status"] == "requires_action", LONG)
    client.interrupt(queued.chat_id, wait=True)
    assert more.get(timeout=LONG)["state"] == "interrupted"

    edited = two_asked(bank)
    first = client.get_messages(edited.chat_id)["messages"][0]["id"]
    client.edit_message(edited.chat_id, first, "Go again.")
    wait_until(lambda: bank.house.row(edited)["status"] == "requires_action", LONG)
    assert edited.get(timeout=LONG)["state"] == "cancelled"
    with pytest.raises(Rejected, match="an earlier turn"):
        client.submit_tool_results(
            edited.chat_id, [answer("a", 1), answer("b", 2)], turn_id=edited.turn_id
        )
    client.interrupt(edited.chat_id, wait=True)

    stopped = two_asked(bank)
    client.send_message(stopped.chat_id, "Stop that.", when_busy="interrupt")
    assert stopped.get(timeout=LONG)["state"] == "interrupted"
    client.interrupt(stopped.chat_id, wait=True)
    assert_invariants(bank.house.world.engine)


# -- approvals ------------------------------------------------------------------------------------


def test_a_call_runs_when_it_is_allowed_and_the_model_reads_the_reason(bank: Bank) -> None:
    note = bank.note("approved")
    calls = together(wanted("delete_all", note=str(note)), wanted("add", a=1, b=2))
    turn = bank.start(calls, DONE)
    chat = bank.wait_for(turn, "requires_action")
    (call,) = chat["open_calls"]  # the other one has run meanwhile
    assert (call["name"], call["approval"]) == ("delete_all", "wanted")
    assert bank.house.row(turn)["worker_id"] is None
    assert not note.exists()
    bank.house.client.approve(turn.chat_id, reason="make it quick")
    text = turn.get(timeout=LONG)["text"]
    assert text.startswith("Done: deleted\n\n[It was allowed with the words: make it quick]")
    assert note.read_text(encoding="utf-8") == "deleted\n"
    with pytest.raises(Rejected, match="nothing waits for approval any more"):
        bank.house.client.approve(turn.chat_id)


def test_one_is_allowed_and_another_is_not(bank: Bank) -> None:
    yes, no = bank.note("yes"), bank.note("no")
    calls = together(
        wanted("delete_all", call_id="yes", note=str(yes)),
        wanted("delete_all", call_id="no", note=str(no)),
    )
    turn = bank.start(calls, DONE)
    bank.wait_for(turn, "requires_action")
    client = bank.house.client
    assert client.deny(turn.chat_id, ["no"], reason="keep it")["status"] == "requires_action"
    with pytest.raises(Rejected, match="Nobody is asked to approve 'no'"):
        client.approve(turn.chat_id, ["no"])
    client.approve(turn.chat_id, ["yes"])
    turn.get(timeout=LONG)
    allowed, denied = bank.results(turn)
    assert allowed["content"] == "deleted"
    assert denied["is_error"]
    assert "keep it" in denied["content"]
    assert (yes.exists(), no.exists()) == (True, False)


def test_nobody_decides_in_time(bank: Bank) -> None:
    yes, no = bank.note("yes"), bank.note("no")
    calls = together(
        wanted("delete_unless_told", note=str(yes)), wanted("delete_if_told", note=str(no))
    )
    turn = bank.start(calls, DONE)
    bank.wait_for(turn, "requires_action")
    bank.sweep_until(turn, "waiting")
    allowed, denied = bank.results(turn)
    assert allowed["content"].startswith("deleted")
    assert denied["content"].startswith("The user did not allow this call")
    assert (yes.exists(), no.exists()) == (True, False)


def test_a_chat_chooses_which_calls_are_asked_about(bank: Bank) -> None:
    note = bank.note("policy")
    free = bank.start(ask("delete_all", note=str(note)), DONE, approval="none")
    assert free.get(timeout=LONG)["text"] == "Done: deleted"
    named = bank.start(ask("add", a=1, b=2), DONE, approval="none", approve=["add"])
    bank.wait_for(named, "requires_action")
    bank.house.client.approve(named.chat_id)
    assert named.get(timeout=LONG)["text"] == "Done: 3"
    every = bank.start(together(wanted("add", a="x"), wanted("add", a=1, b=2)), approval="all")
    (call,) = bank.wait_for(every, "requires_action")["open_calls"]
    assert call["arguments"] == {"a": 1, "b": 2}, "nobody is asked about what cannot be run"
    bank.house.client.interrupt(every.chat_id, wait=True)


def test_a_worker_that_dies_between_approval_and_call_asks_nobody_again(bank: Bank) -> None:
    note = bank.note("crash")
    turn = bank.start(ask("count_if_told", note=str(note)), DONE)
    bank.wait_for(turn, "requires_action")
    (worker,) = [m for m in bank.house.fleet.members if m.name.startswith("steps") and m.alive]
    worker.kill()
    assert bank.house.client.approve(turn.chat_id)["status"] == "pending"
    bank.house.worker()
    assert turn.get(timeout=LONG)["text"] == "Done: counted"
    assert_invariants(bank.house.world.engine)


# -- by hand --------------------------------------------------------------------------------------


def rejoinder(bank: Bank, *arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "rejoinder", *arguments],
        env=bank.house.fleet.env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )
    said = done.stdout + done.stderr
    assert (done.returncode, "Traceback" in said) == (code, False), said
    return said


def test_approve_deny_and_answer_from_the_command_line(bank: Bank) -> None:
    note = bank.note("by-hand")
    calls = together(
        wanted("delete_all", call_id="x", note=str(note)),
        wanted("delete_all", call_id="y", note=str(note)),
        wanted("where", call_id="z"),
    )
    turn = bank.start(calls, DONE, client_tools=[WHERE])
    bank.wait_for(turn, "requires_action")
    shown = rejoinder(bank, "show", turn.chat_id)
    assert "open call: delete_all (x, approval)" in shown
    assert "open call: where (z, client)" in shown
    chat = turn.chat_id
    assert rejoinder(bank, "approve", chat, "x", "--reason", "fine") == "requires_action\n"
    assert rejoinder(bank, "answer", chat, 'z={"lat": 50.7}') == "requires_action\n"
    assert rejoinder(bank, "deny", chat) == "pending\n"
    turn.get(timeout=LONG)
    first, second, third = [r["content"] for r in bank.results(turn)]
    assert first.startswith("deleted")
    assert "fine" in first
    assert second == "The user did not allow this call, and it was not made."
    assert third == {"lat": 50.7}
    assert "nothing waits for approval any more" in rejoinder(bank, "approve", chat, code=1)
    assert "write CALL=VALUE" in rejoinder(bank, "answer", chat, "z", code=1)


def test_the_terminal_chat_tells_what_is_asked_and_takes_the_answer(bank: Bank) -> None:
    note = bank.note("terminal")
    calls = together(
        wanted("delete_all", call_id="x", note=str(note)), wanted("where", call_id="z")
    )
    turn = bank.start(calls, DONE, client_tools=[WHERE])
    bank.wait_for(turn, "requires_action")
    arguments = ("-m", "rejoinder", "chat", turn.chat_id)
    with program(*arguments, env=bank.house.fleet.env, terminal=True) as chat:
        chat.wait_for("may it call delete_all(")
        chat.wait_for("yes: /approve x")
        chat.wait_for("/answer z=VALUE")
        chat.type("/approve nobody\r")
        chat.type("/answer in Bonn\r")
        chat.wait_for("Done: deleted")
        chat.type("\x04")
        assert chat.end() == 0
    first, second = [r["content"] for r in bank.results(turn)]
    assert first.endswith("[It was allowed with the words: nobody]")
    assert second == "in Bonn"


def test_a_chat_on_a_pipe_takes_the_answer_as_a_line(bank: Bank) -> None:
    turn = bank.start(ask("where"), DONE, client_tools=[WHERE])
    bank.wait_for(turn, "requires_action")
    arguments = ("-m", "rejoinder", "chat", turn.chat_id)
    with program(*arguments, env=bank.house.fleet.env) as chat:
        chat.wait_for("it wants the result of where()")
        chat.type("/deny\n/answer here\n")
        chat.wait_for("Nobody is asked to approve any call")
        chat.wait_for("Done: here")
        chat.close_input()
        assert chat.end() == 0
