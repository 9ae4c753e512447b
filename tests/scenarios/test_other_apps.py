"""Another app's Celery task as a tool: a second app with its own worker, on the same broker."""

import signal
from typing import Any

import redis

from tests.integration.invariants import assert_invariants
from tests.scenarios.bank import LONG, Bank, ask, start_billing, together, wanted
from tests.waiting import wait_until

DONE = {"text": "Done: {results}"}


def test_the_task_runs_in_the_other_app_and_its_result_goes_on_in_the_chat(bank: Bank) -> None:
    turn = bank.start(ask("billing_refund", amount=7), DONE)
    assert turn.get(timeout=LONG)["text"] == 'Done: {"refunded": 7}'
    (result,) = bank.results(turn)
    assert not result["is_error"]
    assert_invariants(bank.house.world.engine)


def test_the_chat_sleeps_meanwhile_and_holds_no_slot(bank: Bank) -> None:
    turn, release = bank.hold_up()
    chat = bank.wait_for(turn, "sleeping")
    (call,) = chat["open_calls"]
    assert (call["kind"], call["state"]) == ("external", "started")
    assert call["deadline"] == chat["deadline"]
    assert chat["action"] is None
    assert bank.house.row(turn)["worker_id"] is None
    release.touch()
    assert turn.get(timeout=LONG)["text"] == "Held."


def test_a_failed_task_tells_the_model_why(bank: Bank) -> None:
    turn = bank.start(ask("billing_fail", reason="the till is empty"), DONE)
    turn.get(timeout=LONG)
    (result,) = bank.results(turn)
    assert result["is_error"]
    assert result["content"] == "The task failed with OutOfMoney: the till is empty"


def test_a_result_that_is_no_json_is_told_as_that(bank: Bank) -> None:
    turn = bank.start(ask("billing_odd"), DONE)
    turn.get(timeout=LONG)
    (result,) = bank.results(turn)
    assert result["is_error"]
    assert result["content"].startswith("The task ran, but its result could not be told as JSON")


def test_an_app_that_keeps_no_results_can_answer_and_fail_all_the_same(bank: Bank) -> None:
    turn = bank.start(together(wanted("billing_quiet"), wanted("billing_quiet", reason="x")), DONE)
    turn.get(timeout=LONG)
    good, bad = bank.results(turn)
    assert good["content"] == "quietly done"
    assert bad["is_error"]
    assert bad["content"].startswith("The task failed")


def test_arguments_that_do_not_fit_are_not_sent(bank: Bank) -> None:
    turn = bank.start(ask("billing_refund", amount="all", to="me"), DONE)
    turn.get(timeout=LONG)
    (result,) = bank.results(turn)
    assert result["is_error"]
    assert "amount: 'all' is not of type 'integer'" in result["content"]
    assert "'to' was unexpected" in result["content"]
    (row,) = _calls(bank, turn)
    assert (row["kind"], row["external_id"]) == ("local", None)


def test_calls_of_all_kinds_in_one_message_are_answered_in_call_order(bank: Bank) -> None:
    calls = together(
        wanted("billing_refund", amount=1),
        wanted("add", a=1, b=2),
        wanted("where", call_id="mine"),
        wanted("billing_fail", reason="no"),
        wanted("billing_refund", amount=2),
    )
    turn = bank.start(calls, DONE, client_tools=[{"name": "where"}])
    chat = bank.wait_for(turn, "requires_action")
    assert [c["call_id"] for c in chat["open_calls"] if c["kind"] == "client"] == ["mine"]
    bank.house.client.submit_tool_results(turn.chat_id, [{"call_id": "mine", "content": "here"}])
    turn.get(timeout=LONG)
    told = [result["content"] for result in bank.results(turn)]
    assert told == [
        '{"refunded": 1}',
        "3",
        "here",
        "The task failed with OutOfMoney: no",
        '{"refunded": 2}',
    ]
    assert_invariants(bank.house.world.engine)


def test_an_interrupt_keeps_a_task_that_has_not_started_from_running(bank: Bank) -> None:
    first, release = bank.hold_up()
    note = bank.note("never")
    turn = bank.start(ask("billing_refund", amount=9, note=str(note)), DONE)
    bank.wait_for(turn, "sleeping")
    bank.house.client.interrupt(turn.chat_id, wait=True)
    (result,) = bank.results(turn)
    assert "may still be running" in result["content"]
    release.touch()
    bank.wait_for(first, "waiting")
    after = bank.start(ask("billing_refund", amount=2), DONE)  # behind it in the same queue
    after.get(timeout=LONG)
    assert not note.exists()


def test_a_worker_that_starts_later_knows_that_a_task_was_given_up(bank: Bank) -> None:
    bank.billing.stop()
    note = bank.note("never")
    turn = bank.start(ask("billing_refund", amount=9, note=str(note)), DONE)
    bank.wait_for(turn, "sleeping")
    bank.house.client.interrupt(turn.chat_id, wait=True)
    bank.billing = start_billing(bank.house)
    bank.house.fleet.wait_until_ready(bank.billing)
    bank.start(ask("billing_refund", amount=2), DONE).get(timeout=LONG)
    assert not note.exists()


def test_no_answer_in_time_is_told_as_that_and_a_late_one_changes_nothing(bank: Bank) -> None:
    note, release = bank.note("late"), bank.note("release")
    late = ask("refund_soon", amount=3, note=str(note), until=str(release))
    turn = bank.start(late, {"text": "Too late."})
    wait_until(note.exists, LONG)
    bank.wait_for(turn, "sleeping")
    bank.sweep_until(turn, "waiting")
    (result,) = bank.results(turn)
    assert result["is_error"]
    assert result["content"].startswith("No answer came before the deadline.")
    assert "may still be running" in result["content"]
    version = bank.chat(turn)["version"]
    release.touch()
    bank.start(ask("billing_refund", amount=2), DONE).get(timeout=LONG)  # the late one is over
    assert bank.chat(turn)["version"] == version
    assert_invariants(bank.house.world.engine)


def test_a_repeated_callback_changes_nothing(bank: Bank) -> None:
    turn = bank.start(together(wanted("billing_refund", call_id="one", amount=1)), DONE)
    turn.get(timeout=LONG)
    (call,) = _calls(bank, turn)
    version = bank.chat(turn)["version"]
    _call_back(bank, turn, "one", call["external_id"], "once more")
    assert bank.chat(turn)["version"] == version
    assert [result["content"] for result in bank.results(turn)] == ['{"refunded": 1}']


def test_a_late_answer_of_a_stopped_turn_does_not_fit_a_later_call_of_the_same_id(
    bank: Bank,
) -> None:
    note, release = bank.note("same"), bank.note("release")
    first = wanted("billing_refund", call_id="same", amount=1, note=str(note), until=str(release))
    second = wanted("billing_refund", call_id="same", amount=2)
    turn = bank.play([[together(first)], [together(second), {"text": "Wait.", "delay": 60}]])
    wait_until(note.exists, LONG)
    bank.wait_for(turn, "sleeping")
    bank.house.client.interrupt(turn.chat_id, wait=True)
    bank.house.client.send_message(turn.chat_id, "Again.")
    bank.wait_for(turn, "sleeping")  # behind the first one, which answers first
    release.touch()
    wait_until(lambda: len(bank.results(turn)) == 2, LONG)
    bank.house.client.interrupt(turn.chat_id, wait=True)
    stopped, answered = bank.results(turn)[:2]
    assert "stopped the turn" in stopped["content"]
    assert answered["content"] == '{"refunded": 2}'
    assert_invariants(bank.house.world.engine)


def test_a_task_that_nobody_knows_is_told_by_the_sweep(bank: Bank) -> None:
    turn = bank.start(ask("billing_missing"), DONE)
    bank.wait_for(turn, "sleeping")
    bank.pretend_waited(turn)
    bank.sweep_until(turn, "waiting")
    (result,) = bank.results(turn)
    assert result["content"].startswith("The task failed with NotRegistered")


def test_a_task_waits_for_approval_before_it_is_sent(bank: Bank) -> None:
    note = bank.note("asked")
    turn = bank.start(ask("refund_asked", amount=5, note=str(note)), DONE)
    chat = bank.wait_for(turn, "requires_action")
    (call,) = chat["open_calls"]
    assert (call["approval"], call["state"]) == ("wanted", "requested")
    bank.start(ask("billing_refund", amount=2), DONE).get(timeout=LONG)
    assert not note.exists(), "it was sent without approval"
    bank.house.client.approve(turn.chat_id, reason="he asked nicely")
    answer = turn.get(timeout=LONG)["text"]
    assert answer.startswith('Done: {"refunded": 5}')
    assert "he asked nicely" in answer
    assert note.read_text(encoding="utf-8") == "refund 5\n"


def test_a_denied_task_is_never_sent(bank: Bank) -> None:
    note = bank.note("denied")
    turn = bank.start(ask("refund_asked", amount=5, note=str(note)), DONE)
    bank.wait_for(turn, "requires_action")
    bank.house.client.deny(turn.chat_id, reason="too much")
    turn.get(timeout=LONG)
    (result,) = bank.results(turn)
    assert result["is_error"]
    assert "too much" in result["content"]
    bank.start(ask("billing_refund", amount=2), DONE).get(timeout=LONG)
    assert not note.exists()


def test_a_killed_worker_of_ours_loses_no_answer(bank: Bank) -> None:
    turn, release = bank.hold_up()
    bank.wait_for(turn, "sleeping")
    (worker,) = [m for m in bank.house.fleet.members if m.name.startswith("steps") and m.alive]
    worker.kill()
    release.touch()
    bank.wait_for(turn, "pending")  # woken, and nobody there to go on
    bank.house.worker()
    bank.wait_for(turn, "waiting")
    (result,) = bank.results(turn)
    assert result["content"] == '{"refunded": 1}'
    assert_invariants(bank.house.world.engine)


def test_a_lost_callback_is_found_in_the_result_backend(bank: Bank) -> None:
    turn, release = bank.hold_up()
    bank.wait_for(turn, "sleeping")
    bank.control.signal(signal.SIGKILL)
    bank.control.wait()
    release.touch()
    url = bank.house.fleet.env["REJOINDER_REDIS_URL"]
    with redis.Redis.from_url(url) as connection:
        wait_until(lambda: connection.llen("rejoinder.control"), LONG)
        connection.delete("rejoinder.control")
    bank.pretend_waited(turn)
    bank.control = bank.house.fleet.worker(
        f"control-{next(bank.house._numbers)}", queues=["rejoinder.control"], concurrency=8
    )
    bank.house.fleet.wait_until_ready(bank.control)  # it sweeps when it starts
    bank.wait_for(turn, "waiting")
    (result,) = bank.results(turn)
    assert result["content"] == '{"refunded": 1}'


def _calls(bank: Bank, turn: Any) -> list[dict[str, Any]]:
    query = "SELECT * FROM rejoinder.tool_calls WHERE chat_id = :id ORDER BY id"
    return bank.house.world.read(query, id=turn.chat_id)


def _call_back(bank: Bank, turn: Any, call_id: str, external_id: str, value: Any) -> None:
    """What the other app's worker sends when the task is done; taken on return."""
    whose = {"chat_id": turn.chat_id, "call_id": call_id, "external_id": external_id}
    app, log = bank.house.client.app, bank.control.text
    done = log().count("rejoinder.task_answered") + 2  # received, succeeded
    app.send_task("rejoinder.task_answered", [value], whose, queue="rejoinder.control")
    wait_until(lambda: log().count("rejoinder.task_answered") >= done, LONG)
