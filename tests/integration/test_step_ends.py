"""However a step ends, what its tools had finished stays, and what never began can still run.

One message asks for three calls: the first has finished, the second is at work and brings about the
end, the third has not begun. The step runs in this process, on real rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import anyio
import pytest
from celery.app.task import Context
from uuid_utils.compat import uuid7

from models import claims, machine
from rejoinder.core.effects import Cause, Effects
from rejoinder.core.settings import Settings
from rejoinder.tools import Registry, tool
from tasks import step, stopping
from tasks.runtime import Runtime
from tests.chats import World
from tests.integration.invariants import assert_invariants

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import RedisSpace

ASKED = {
    "text": "Look.",
    "calls": [{"name": name, "arguments": {}} for name in ("finished", "ending", "waiting")],
}


class Stage:
    """A process that runs one step of one chat."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.world = World(runtime.engine)
        self.ends: Callable[[], object] = list
        """What the second call brings about."""
        self.ran: list[str] = []
        self.effects: list[Effects] = []
        self.chat_id = self.world.new(
            model="scripted:inline",
            options={"extra": {"script": {"turns": [[ASKED, {"text": "Done."}]]}}},
        ).id
        runtime.tools = Registry(self._tools())

    def _tools(self) -> list[Any]:
        @tool
        async def finished() -> str:
            """Be done at once."""
            self.ran.append("finished")
            return "found"

        @tool
        async def ending() -> str:
            """Bring about the end, before the next call begins."""
            self.ran.append("ending")
            self.ends()
            await anyio.sleep_forever()
            return "never"

        @tool
        async def waiting() -> str:
            """Be the last one."""
            self.ran.append("waiting")
            return "came"

        return [finished, ending, waiting]

    def cancel(self, cause: Cause) -> None:
        self.runtime.cancel(self.world.row(self.chat_id)["lease_id"], cause)

    def step(self) -> None:
        step.take(Context(id=str(uuid7())), self.runtime, self.chat_id)

    @property
    def status(self) -> str:
        return str(self.world.row(self.chat_id)["status"])

    def calls(self) -> dict[str, tuple[str, str | None]]:
        """By name, the state of each call, and what came of it."""
        rows = self.world.read("SELECT name, state, result FROM rejoinder.tool_calls ORDER BY id")
        return {r["name"]: (r["state"], r["result"] and r["result"]["content"]) for r in rows}

    def results(self) -> list[str]:
        """What stands in history."""
        rows = self.world.read("SELECT parts FROM rejoinder.messages WHERE role = 'tool'")
        return [part["content"] for row in rows for part in row["parts"]]


@pytest.fixture
def stage(
    database_url: str, redis_space: RedisSpace, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Stage]:
    settings = Settings(
        database_url=database_url,
        redis_url=redis_space.url,
        redis_prefix=redis_space.prefix,
        title_model="off",
    )
    runtime = Runtime(settings)
    claims.register_worker(runtime.engine, runtime.worker_id, "this process")
    monkeypatch.setattr(stopping, "this", stopping.Stopping())
    made = Stage(runtime)
    monkeypatch.setattr(
        "tasks.held.publish", lambda _, effects, **_options: made.effects.append(effects)
    )
    yield made
    runtime.close()


def test_a_shutdown_keeps_results_and_leaves_what_never_began(stage: Stage) -> None:
    stage.ends = lambda: stage.cancel(Cause.SHUTDOWN)
    stage.step()
    assert stage.status == "pending"
    calls = stage.calls()
    assert calls["finished"] == ("finished", "found")
    assert "unknown" in str(calls["ending"][1])
    assert calls["waiting"] == ("requested", None)
    stage.step()
    assert stage.ran == ["finished", "ending", "waiting"], "each was run once"
    found, unknown, came = stage.results()
    assert (found, came) == ("found", "came")
    assert unknown == calls["ending"][1]
    assert_invariants(stage.world.engine)


def test_a_stop_keeps_results_and_says_what_never_began(stage: Stage) -> None:
    def stop() -> None:
        stage.world.do(machine.interrupt, stage.chat_id)
        stage.cancel(Cause.INTERRUPT)

    stage.ends = stop
    stage.step()
    assert stage.status == "waiting"
    found, begun, untouched = stage.results()
    assert found == "found"
    assert "It had started" in begun
    assert "stopped" in untouched
    assert "started" not in untouched
    assert stage.ran == ["finished", "ending"]
    assert_invariants(stage.world.engine)


def test_a_stop_that_nobody_heard_of_keeps_results_all_the_same(stage: Stage) -> None:
    """The hint got lost: the step learns of it from the row, when it is to commit."""
    stage.runtime.tools = Registry(
        [each for each in stage.runtime.tools if each.name != "ending"]
        + [_returning(lambda: stage.world.do(machine.interrupt, stage.chat_id))]
    )
    stage.step()
    assert stage.status == "waiting"
    assert stage.results() == ["found", "ok", "came"]
    assert_invariants(stage.world.engine)


def _returning(act: Callable[[], object]) -> Any:
    @tool
    async def ending() -> None:
        """Bring about a stop, and be done."""
        act()

    return ending


def test_a_step_that_takes_too_long_keeps_results_for_the_next_attempt(stage: Stage) -> None:
    stage.ends = lambda: stage.cancel(Cause.DEADLINE)
    stage.step()
    row, calls = stage.world.row(stage.chat_id), stage.calls()
    assert (row["status"], row["retry_state"]["kind"]) == ("pending", "timeout")
    assert row["run_after"] is not None
    assert calls["finished"] == ("finished", "found")
    assert "unknown" in str(calls["ending"][1])
    assert calls["waiting"] == ("requested", None)
    assert_invariants(stage.world.engine)


def test_a_step_that_took_too_long_too_often_keeps_results_for_a_retry(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step, "may_retry", lambda _attempt: False)
    stage.ends = lambda: stage.cancel(Cause.DEADLINE)
    stage.step()
    row, calls = stage.world.row(stage.chat_id), stage.calls()
    assert (row["status"], row["last_error"]["kind"]) == ("error", "timeout")
    assert calls["finished"] == ("finished", "found")
    assert calls["waiting"] == ("requested", None)
    stage.world.do(machine.retry, stage.chat_id)
    stage.step()
    assert stage.results()[::2] == ["found", "came"]
    assert stage.ran == ["finished", "ending", "waiting"]
    assert_invariants(stage.world.engine)


def test_a_step_whose_lease_is_gone_writes_nothing(stage: Stage) -> None:
    def take_over() -> None:
        lease_id: UUID = stage.world.row(stage.chat_id)["lease_id"]
        stage.world.do(machine.recover, stage.chat_id, lease_id)
        stage.runtime.cancel(lease_id, Cause.LEASE_LOST)

    stage.ends = take_over
    stage.step()
    (_, *after) = stage.effects
    assert after == [], "nothing after the message that asked for tools"
    assert stage.calls()["finished"][1] != "found"
    assert_invariants(stage.world.engine)
