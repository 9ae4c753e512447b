"""What a step makes of what its model says, or fails to say."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING

import anyio
import pytest

from models import machine
from rejoinder.core.cancellation import Cancellation
from rejoinder.core.effects import Cause
from rejoinder.core.messages import Usage
from rejoinder.core.model import Batch, Reply, StopReason
from rejoinder.core.parts import Text
from rejoinder.tools import tool
from tasks.generate import consume
from tests.integration.invariants import assert_invariants
from tests.integration.stepping import Stepping, stepping
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from tests.conftest import RedisSpace

WORDS = " ".join(f"word{number}" for number in range(200))


@pytest.fixture
def process(
    database_url: str, redis_space: RedisSpace, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Stepping]:
    for made in stepping(database_url, redis_space, monkeypatch, max_steps=2):
        yield made
        assert_invariants(made.world.engine)


def meanwhile(process: Stepping, ready: Callable[[], object], act: Callable[[], object]) -> None:
    """Take a step, and do something as soon as it has come so far."""

    def watch() -> None:
        wait_until(ready)
        act()

    other = threading.Thread(target=watch)
    other.start()
    process.step()
    other.join(10)


def turn(process: Stepping) -> str:
    (row,) = process.world.read("SELECT state FROM rejoinder.turns")
    return str(row["state"])


@tool
def look() -> str:
    """Look."""
    return "seen"


LOOK = {"text": "Look.", "calls": [{"name": "look", "arguments": {}}]}


def test_a_failure_that_may_pass_is_tried_again_not_before_the_provider_says(
    process: Stepping,
) -> None:
    fail = {"kind": "overloaded", "after": 1, "retry_after": 7}
    process.start({"text": "One two.", "fail": [fail]})
    process.step()
    row = process.row
    assert (row["status"], row["attempt"]) == ("pending", 1)
    assert row["retry_state"]["kind"] == "overloaded"
    assert row["run_after"] - row["updated_at"] >= timedelta(seconds=6.9)
    (reset,) = process.told("preview_reset")
    assert reset.data["attempt"] == 0
    assert process.history()[1:] == []


def test_a_final_failure_ends_the_turn_at_once(process: Stepping) -> None:
    process.start({"text": "No.", "fail": [{"kind": "auth"}]})
    process.step()
    row = process.row
    assert (row["status"], row["last_error"]["kind"], row["attempt"]) == ("error", "auth", 0)
    assert turn(process) == "failed"


def test_a_bug_ends_the_turn_and_says_so(process: Stepping) -> None:
    process.start({"text": "No.", "fail": [{"kind": "bug"}]})
    process.step()
    assert (process.status, process.row["last_error"]["kind"]) == ("error", "generic")


def test_an_answer_without_its_end_is_none(process: Stepping) -> None:
    process.start({"text": "One two.", "fail": [{"kind": "truncated", "after": 1}]})
    process.step()
    assert (process.status, process.row["retry_state"]["kind"]) == ("pending", "timeout")
    assert process.history()[1:] == []


def test_a_stop_keeps_the_words_that_were_said(process: Stepping) -> None:
    process.start({"text": WORDS, "pace": 0.05})

    def stop() -> None:
        process.world.do(machine.interrupt, process.chat_id)
        process.cancel(Cause.INTERRUPT)

    meanwhile(process, lambda: process.told("part"), stop)
    (_, (role, (said,))) = process.history()
    assert (process.status, turn(process), role) == ("waiting", "interrupted", "assistant")
    assert said
    assert WORDS.startswith(said)
    assert said != WORDS


def test_a_stop_that_nobody_heard_of_keeps_the_whole_answer(process: Stepping) -> None:
    process.start({"text": "All of it.", "pace": 0.2})

    def stop() -> None:
        process.world.do(machine.interrupt, process.chat_id)

    meanwhile(process, lambda: process.told("part"), stop)
    assert (process.status, turn(process)) == ("waiting", "interrupted")
    assert process.history()[1:] == [("assistant", ["All of it."])]


def test_a_silent_stream_is_given_up(process: Stepping) -> None:
    object.__setattr__(process.runtime.settings, "silence_seconds", 0.2)
    process.start({"text": "One two three.", "hang_after": 1})
    tried = threading.Thread(target=process.step, daemon=True)
    tried.start()
    tried.join(10)
    assert (process.status, process.row["retry_state"]["kind"]) == ("pending", "stream_silence")


def test_a_complete_answer_wins_over_a_cancellation_that_came_with_it() -> None:
    cancellation = Cancellation()
    reply = Reply((Text("All of it."),), StopReason.END, Usage(), "scripted:inline")

    async def stream() -> AsyncIterator[Batch]:
        yield (reply,)
        cancellation.cancel(Cause.SHUTDOWN)
        await anyio.sleep_forever()

    done = anyio.run(consume, stream(), cancellation, lambda _: None, 60.0)
    assert done is reply


def test_a_deadline_in_mid_answer_is_tried_again(process: Stepping) -> None:
    process.start({"text": WORDS, "pace": 0.05})
    meanwhile(process, lambda: process.told("part"), lambda: process.cancel(Cause.DEADLINE))
    row = process.row
    assert (row["status"], row["attempt"], row["crashes"]) == ("pending", 1, 0)
    assert row["run_after"] is not None
    assert len(process.told("preview_reset")) == 1


def test_what_an_answer_cost_is_kept_though_the_answer_is_not(process: Stepping) -> None:
    usage = {"input_tokens": 11, "output_tokens": 5}
    process.start({"stop": "refusal", "usage": usage})
    process.step()
    row = process.row
    assert (row["status"], row["last_error"]["kind"]) == ("error", "content_filter")
    assert (row["used_input"], row["used_output"]) == (11, 5)
    (took,) = process.world.read("SELECT input_tokens, output_tokens FROM rejoinder.steps")
    assert (took["input_tokens"], took["output_tokens"]) == (11, 5)


def test_an_answer_that_was_cut_off_stands_and_people_are_told(process: Stepping) -> None:
    process.start({"text": "Once upon", "stop": "max_tokens"})
    process.step()
    rows = process.world.read("SELECT role, visibility, parts FROM rejoinder.messages ORDER BY id")
    (_, answer, notice) = rows
    assert answer["parts"][0]["text"] == "Once upon"
    assert (notice["role"], notice["visibility"]) == ("assistant", "user")
    assert "cut off" in notice["parts"][0]["text"]
    assert turn(process) == "finished"


def test_a_turn_without_an_end_is_stopped_with_a_notice_that_the_model_does_not_read(
    process: Stepping,
) -> None:
    process.start(LOOK, LOOK, LOOK, LOOK, tools=[look])
    for _ in range(3):
        process.step()
    rows = process.world.read("SELECT visibility, parts FROM rejoinder.messages ORDER BY id")
    assert (process.status, turn(process)) == ("waiting", "finished")
    assert rows[-1]["visibility"] == "user"
    assert "2 steps" in rows[-1]["parts"][0]["text"]


def test_what_needs_leave_does_not_begin(process: Stepping) -> None:
    ran: list[str] = []

    @tool(approval=True)
    def pay() -> None:
        """Pay."""
        ran.append("pay")

    both = {"text": "Pay.", "calls": [*LOOK["calls"], {"name": "pay", "arguments": {}}]}
    process.start(both, {"text": "Done."}, tools=[look, pay])
    process.step()
    assert ran == []
    assert process.status == "requires_action"
    assert process.calls() == {"look": ("finished", "seen"), "pay": ("requested", None)}
    process.world.do(machine.approve, process.chat_id, _ids(process, "pay"), approved=True)
    process.step()
    process.step()
    assert ran == ["pay"]
    assert process.history()[2:] == [("tool", ["seen", "ok"]), ("assistant", ["Done."])]


def _ids(process: Stepping, name: str) -> list[str]:
    query = "SELECT call_id FROM rejoinder.tool_calls WHERE name = :n"
    return [row["call_id"] for row in process.world.read(query, n=name)]


def test_the_app_answers_what_is_its_own_and_the_workers_result_is_kept(process: Stepping) -> None:
    client = [{"name": "ask", "description": "Ask."}]
    both = {"text": "Ask.", "calls": [*LOOK["calls"], {"name": "ask", "arguments": {}}]}
    process.start(both, {"text": "Done."}, tools=[look], client_tools=client)
    process.step()
    assert process.status == "requires_action"
    assert process.calls()["look"] == ("finished", "seen")
    (effects,) = [each for each in process.effects if each.status == "requires_action"]
    assert effects.dispatch is None, "nothing to do until it is answered"
