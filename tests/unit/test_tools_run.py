"""Running the calls of one message: concurrency, order, errors, context."""

from __future__ import annotations

import logging
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING

import anyio
import pytest

from rejoinder.core.messages import CallKind, CallPlan
from rejoinder.core.model import ToolSpec
from rejoinder.testing.tools import CHAT_ID, TURN_ID, call_tool
from rejoinder.tools import Ran, Registry, Tool, ToolContext, ToolError, tool
from tests.tool_runs import LONG, add, contents, play, run

if TYPE_CHECKING:
    from rejoinder.core.parts import Json, ToolResult


def test_calls_run_at_once_and_results_are_in_call_order() -> None:
    last_is_done = anyio.Event()
    told: list[str] = []

    @tool
    async def first() -> str:
        await last_is_done.wait()
        return "first"

    @tool
    async def last() -> str:
        last_is_done.set()
        return "last"

    ran = play(run((first, {}), (last, {}), on_result=lambda result: told.append(result.call_id)))
    assert contents(ran) == ["first", "last"]
    assert told == ["1", "0"]
    assert (ran.unfinished, ran.untouched, ran.cause) == ((), (), None)


def test_blocking_tools_run_at_once_in_threads_of_their_own() -> None:
    meet = threading.Barrier(3, timeout=LONG)
    threads: list[threading.Thread] = []

    @tool
    def blocking(n: int) -> int:
        threads.append(threading.current_thread())
        meet.wait()
        return n

    ran = play(run(*[(blocking, {"n": n}) for n in range(3)]))
    assert contents(ran) == ["0", "1", "2"]
    assert len(set(threads)) == 3
    assert all(thread.daemon for thread in threads)  # the interpreter joins all others at exit


def test_more_blocking_tools_than_threads_wait_for_their_turn() -> None:
    go, ran_already = threading.Event(), threading.Event()
    seen: list[bool] = []

    @tool
    def first() -> str:
        return "first" if go.wait(LONG) else "late"

    @tool
    def second() -> str:
        ran_already.set()
        return "second"

    @tool
    async def watching() -> str:
        await anyio.wait_all_tasks_blocked()
        seen.append(ran_already.is_set())
        go.set()
        return "watching"

    ran = play(run((first, {}), (second, {}), (watching, {}), max_threads=1))
    assert contents(ran) == ["first", "second", "watching"]
    assert seen == [False]


def test_every_failure_belongs_to_its_call_only(caplog: pytest.LogCaptureFixture) -> None:
    @tool
    def broken(secret: str) -> str:
        assert secret
        raise KeyError("no such key")

    @tool
    async def refusing() -> str:
        raise ToolError("Ask again tomorrow.")

    @tool
    async def wrapped() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(failing)

    async def failing() -> None:
        raise LookupError("inner")

    client = Tool(ToolSpec("ask_user", "", {}), CallPlan(CallKind.CLIENT))
    registry = Registry([add, broken, refusing, wrapped, client])
    with caplog.at_level(logging.DEBUG):
        ran = play(
            run(
                (broken, {"secret": "hunter2"}),
                (refusing, {}),
                ("nope", {}),
                (add, {"a": "x", "c": 1}),
                ("ask_user", {}),
                (wrapped, {}),
                (add, {"a": 1}),
                registry=registry,
            )
        )
    assert contents(ran) == [
        "KeyError: 'no such key'",
        "Ask again tomorrow.",
        "There is no tool nope; there are: add, ask_user, broken, refusing, wrapped.",
        (
            "The arguments of add are not valid; nothing was run.\n"
            "- a: Input should be a valid integer, unable to parse string as an integer (got 'x')\n"
            "- c: there is no such argument; there are: a, b"
        ),
        "The tool ask_user is not one that a worker can run.",
        "LookupError: inner",
        "2",
    ]
    assert [result.is_error for result in ran.results] == [True] * 6 + [False]
    assert ran.unfinished == ()
    # Bugs are logged with their traceback, once; arguments never are.
    logged = {record.getMessage() for record in caplog.records if record.exc_info}
    assert logged == {"tool broken failed", "tool wrapped failed"}
    assert "hunter2" not in caplog.text


def test_a_missing_or_nested_argument_is_named() -> None:
    @tool
    def f(points: list[dict[str, int]], city: str) -> None: ...

    (result,) = play(run((f, {"points": [{"x": 1}, {"x": "no"}]}))).results
    assert "- points[1].x: Input should be a valid integer" in str(result.content)
    assert "- city: is required and missing" in str(result.content)


def test_a_tool_that_is_not_active_is_refused_at_execution() -> None:
    @tool
    def other() -> None: ...

    registry = Registry([add, other])
    ran = play(run((add, {"a": 1}), (other, {}), registry=registry, active=["other"]))
    assert contents(ran) == ["The tool add is not active in this turn; there are: other.", "ok"]
    ran = play(run((add, {"a": 1}), ("nope", {}), active=[]))
    assert contents(ran) == [
        "The tool add is not active in this turn; there are none.",
        "There is no tool nope; there are none.",
    ]


@pytest.mark.parametrize("error", [StopIteration("over"), SystemExit(3), StopAsyncIteration()])
def test_odd_exceptions_of_a_blocking_tool_are_results_too(error: BaseException) -> None:
    @tool
    def odd() -> None:
        raise error

    (result,) = play(run((odd, {}))).results
    assert result.is_error
    assert contents(Ran((result,)))[0] in (
        "RuntimeError: StopIteration: over",
        "the tool tried to exit (3)",
        "StopAsyncIteration",
    )


def test_an_exception_that_cannot_be_printed_is_told_by_its_type() -> None:
    class Mute(Exception):  # noqa: N818
        def __str__(self) -> str:
            raise ValueError

    @tool
    async def odd() -> None:
        raise Mute

    assert contents(play(run((odd, {})))) == ["Mute"]


@pytest.mark.parametrize("size", [100_000])
def test_long_errors_and_results_are_capped(size: int) -> None:
    @tool
    def long() -> str:
        return "é" * size

    @tool
    def failing() -> str:
        raise ToolError("é" * size)

    for content in contents(play(run((long, {}), (failing, {}), context_limit=1000))):
        assert len(str(content).encode()) <= 16 * 1024
        assert "bytes were cut here" in str(content)


def test_progress_is_told_from_any_thread_and_a_bad_listener_harms_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @tool
    def blocking(context: ToolContext) -> str:
        context.progress("half")
        return "done"

    @tool
    async def going(context: ToolContext) -> str:
        context.progress({"done": 1})
        return "done"

    progress: list[Json] = []
    assert contents(play(run((blocking, {}), (going, {}), progress=progress))) == ["done"] * 2
    assert sorted(map(str, progress)) == ["half", "{'done': 1}"]

    async def unheard() -> ToolResult:
        return await call_tool(going, {}, on_progress=lambda _value: 1 / 0)  # type: ignore[arg-type]

    assert anyio.run(unheard).content == "done"
    assert "progress of tool going was not told" in caplog.text
    ToolContext(CHAT_ID, TURN_ID, "c", "t").progress("nobody listens")


def test_a_listener_for_results_that_fails_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    ran = play(run((add, {"a": 1}), on_result=lambda _result: 1 / 0))
    assert contents(ran) == ["2"]
    assert "the result of call 0 was not told" in caplog.text


def test_the_context_knows_its_call(caplog: pytest.LogCaptureFixture) -> None:
    @tool
    def f(context: ToolContext) -> list[str]:
        context.logger.warning("hello")
        return [str(context.chat_id), str(context.turn_id), context.call_id, context.tool]

    ran = play(run((f, {})))
    assert contents(ran) == [f'["{CHAT_ID}", "{TURN_ID}", "0", "f"]']
    record = caplog.records[0]
    assert record.name == "rejoinder.tools.f"
    assert (vars(record)["call_id"], vars(record)["chat_id"]) == ("0", str(CHAT_ID))
    context = ToolContext(CHAT_ID, TURN_ID, "c", "f")
    assert context.idempotency_key == f"{CHAT_ID}/{TURN_ID}/c"
    assert (context.cancelled, context.cause) == (False, None)
    context.raise_if_cancelled()


def test_context_variables_reach_blocking_tools() -> None:
    tenant = ContextVar("tenant", default="nobody")

    @tool
    def who() -> str:
        return tenant.get()

    async def main() -> Ran:
        tenant.set("acme")
        return await run((who, {}))

    assert contents(anyio.run(main)) == ["acme"]


def test_no_calls_no_results() -> None:
    assert play(run()) == Ran(())
