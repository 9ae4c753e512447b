"""However a step ends, what its tools had finished stays, and what never began can still run.

One message asks for three calls: the first has finished, the second is at work and brings about the
end, the third has not begun. The step runs in this process, on real rows.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from models import machine
from rejoinder.core.effects import Cause
from rejoinder.tools import tool
from tasks import runtime as runtimes
from tasks import step
from tests.integration.invariants import assert_invariants
from tests.integration.stepping import Stepping, stepping
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from uuid import UUID

    from tests.conftest import RedisSpace

ASKED = {
    "text": "Look.",
    "calls": [{"name": name, "arguments": {}} for name in ("finished", "ending", "waiting")],
}


class Stage:
    """Three calls, and what the second one brings about."""

    def __init__(self, process: Stepping) -> None:
        self.process = process
        self.world = process.world
        self.ends: Callable[[], object] = list
        self.returns = False
        """Whether the second call is done after that."""
        self.ran: list[tuple[str, str]] = []
        """What was run, and which state its row had meanwhile."""
        process.start(ASKED, {"text": "Done."}, tools=self._tools())

    def _tools(self) -> list[Any]:
        @tool
        async def finished() -> str:
            """Be done at once."""
            self._note("finished")
            return "found"

        @tool
        async def ending() -> str:
            """Bring about the end, before the next call begins."""
            self._note("ending")
            self.ends()
            if not self.returns:
                await anyio.sleep_forever()
            return "ended"

        @tool
        async def waiting() -> str:
            """Be the last one."""
            self._note("waiting")
            return "came"

        return [finished, ending, waiting]

    def _note(self, name: str) -> None:
        self.ran.append((name, self.process.calls()[name][0]))

    @property
    def ran_once(self) -> bool:
        """Whether each was run once, and its row said so: a crash meanwhile would be known."""
        names = ("finished", "ending", "waiting")
        return self.ran == [(name, "started") for name in names]


@pytest.fixture
def stage(
    database_url: str, redis_space: RedisSpace, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Stage]:
    for process in stepping(database_url, redis_space, monkeypatch):
        yield Stage(process)
        assert_invariants(process.world.engine)


def test_a_shutdown_keeps_results_and_leaves_what_never_began(stage: Stage) -> None:
    process = stage.process
    stage.ends = lambda: process.cancel(Cause.SHUTDOWN)
    process.step()
    row, calls = process.row, process.calls()
    assert (row["status"], row["attempt"], row["run_after"]) == ("pending", 0, None)
    assert calls["finished"] == ("finished", "found")
    assert "unknown" in str(calls["ending"][1])
    assert calls["waiting"] == ("requested", None)
    process.step()
    assert stage.ran_once
    assert process.results() == ["found", calls["ending"][1], "came"]


def test_a_stop_keeps_results_and_says_what_never_began(stage: Stage) -> None:
    process = stage.process

    def stop() -> None:
        stage.world.do(machine.interrupt, process.chat_id)
        process.cancel(Cause.INTERRUPT)

    stage.ends = stop
    process.step()
    assert process.status == "waiting"
    found, begun, untouched = process.results()
    assert found == "found"
    assert "It had started" in begun
    assert "stopped" in untouched
    assert "started" not in untouched
    assert [name for name, _ in stage.ran] == ["finished", "ending"]


def test_a_stop_that_nobody_heard_of_keeps_results_all_the_same(stage: Stage) -> None:
    """The hint got lost: the step learns of it from the row, when it is to commit."""
    process = stage.process
    stage.ends = lambda: stage.world.do(machine.interrupt, process.chat_id)
    stage.returns = True
    process.step()
    assert process.status == "waiting"
    assert process.history()[1:] == [
        ("assistant", ["Look.", "→finished", "→ending", "→waiting"]),
        ("tool", ["found", "ended", "came"]),
    ]


def test_a_step_that_takes_too_long_keeps_results_for_the_next_attempt(stage: Stage) -> None:
    process = stage.process
    stage.ends = lambda: process.cancel(Cause.DEADLINE)
    process.step()
    row, calls = process.row, process.calls()
    assert (row["status"], row["retry_state"]["kind"]) == ("pending", "timeout")
    assert row["run_after"] is not None
    assert calls["finished"] == ("finished", "found")
    assert "unknown" in str(calls["ending"][1])
    assert calls["waiting"] == ("requested", None)


def test_a_step_that_took_too_long_too_often_keeps_results_for_a_retry(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = stage.process
    monkeypatch.setattr(step, "may_retry", lambda _attempt: False)
    stage.ends = lambda: process.cancel(Cause.DEADLINE)
    process.step()
    row, calls = process.row, process.calls()
    assert (row["status"], row["last_error"]["kind"]) == ("error", "timeout")
    assert calls["finished"] == ("finished", "found")
    assert calls["waiting"] == ("requested", None)
    stage.world.do(machine.retry, process.chat_id)
    process.step()
    assert process.results()[::2] == ["found", "came"]
    assert stage.ran_once


def test_a_result_that_comes_too_late_is_told_nobody(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tool did not heed the cancellation, and the chat was handed back meanwhile."""
    monkeypatch.setattr(runtimes, "HEED_SECONDS", 0.1)
    process, released = stage.process, threading.Event()

    @tool
    async def deaf() -> str:
        """Go on, whatever is asked."""
        process.cancel(Cause.SHUTDOWN)
        with anyio.CancelScope(shield=True):
            while not released.is_set():  # noqa: ASYNC110  # it is set by another thread
                await anyio.sleep(0.01)
        return "late"

    process.start({"calls": [{"name": "deaf", "arguments": {}}]}, tools=[deaf])
    process.step()
    assert process.status == "pending"
    released.set()
    wait_until(lambda: not process.runtime._tasks, what="the tool's end")
    states = [event.data["state"] for event in process.told("tool")]
    assert states == ["started"]


def test_a_step_whose_lease_is_gone_writes_nothing(stage: Stage) -> None:
    process = stage.process

    def take_over() -> None:
        lease_id: UUID = process.row["lease_id"]
        stage.world.do(machine.recover, process.chat_id, lease_id)
        process.runtime.cancel(lease_id, Cause.LEASE_LOST)

    stage.ends = take_over
    process.step()
    (_, *after) = process.effects
    assert after == [], "nothing after the message that asked for tools"
    assert process.calls()["finished"][1] != "found"
