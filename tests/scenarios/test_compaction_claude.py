"""Compaction with Claude's API: a real worker, the real SDK, and a server that reads along."""

from collections.abc import Callable
from pathlib import Path

from anyio.from_thread import start_blocking_portal

from rejoinder import embedded
from rejoinder.core.compaction import INSTRUCTION
from tests.integration import sse
from tests.scenarios.plays import LONG, play
from tests.unit.prompts import check_body

FULL = {"input_tokens": 10_000, "cache_read_input_tokens": 140_000, "output_tokens": 1}
CALL = sse.start(usage=FULL) + sse.call(0, "t1", '{"a": 1, "b": 2}') + sse.end("tool_use")
SUMMARY = sse.start() + sse.text(0, "We ", "added.") + sse.end()
DONE = sse.start() + sse.text(0, "Done.") + sse.end()


def test_the_request_for_a_summary_is_one_that_the_api_takes(
    servers: embedded.Servers, make_database: Callable[[], str], tmp_path: Path
) -> None:
    answers = iter([CALL, SUMMARY, DONE])

    async def answer(connection: sse.Connection) -> None:
        await connection.begin()
        await connection.send(next(answers))

    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(sse.serving(answer)) as server,
        play(servers, make_database(), tmp_path) as on,
    ):
        claude = {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": "sk-ant-x"}
        on.worker("w", env={**claude, "REJOINDER_TITLE_MODEL": "off"})
        on.ready()
        turn = on.client.create_chat(
            "Add them. Never round.",
            owner="joe",
            system="Be kind.",
            model="anthropic:claude-sonnet-5",
            options={"thinking": "adaptive", "tools": ["add"]},
        )
        assert turn.get(timeout=LONG)["text"] == "Done."
    first, summary, after = server.requests
    for body in server.requests:
        check_body(body)
        assert [tool["name"] for tool in body["tools"]] == ["add"]
        assert [block["text"] for block in body["system"]] == ["Be kind."]
    assert summary["tool_choice"] == {"type": "none"}
    assert "thinking" not in summary
    assert summary["messages"][:-1] == [
        {"role": "user", "content": [{"type": "text", "text": "Add them. Never round."}]},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1, "b": 2}}],
        },
    ]
    last = summary["messages"][-1]
    assert [block["type"] for block in last["content"]] == ["tool_result", "text"]
    assert last["content"][-1]["text"] == INSTRUCTION
    (only,) = after["messages"]
    words = [block["text"] for block in only["content"]]
    assert words[0].endswith("\n\nWe added.")
    assert words[1].endswith("\n\nAdd them. Never round.")
    for usual in (first, after):
        assert "tool_choice" not in usual
        assert usual["thinking"] == {"type": "adaptive"}
