"""DBOS: one workflow per task; each model call and each tool call is a step of it.

A step's outcome is stored before the next one starts, and a workflow that was cut off goes on from
there, once a process of the same executor id and application version starts (or their conductor, a
service of its own, has another do it); a step that was cut off runs once more, tools too.

`.venv-peers/bin/python -m scripts.bench_parts.contenders.dbos_peer`, see `program.py`.
"""

import asyncio
import os
from functools import cache
from typing import Any

from anthropic import AsyncAnthropic
from dbos import DBOS, DBOSConfig, SetWorkflowID

from scripts.bench_parts.contenders.program import serve
from scripts.bench_parts.task import MODEL, TOOL, TOOL_SAYS, TOOL_SCHEMA, Task, add


@cache
def client() -> AsyncAnthropic:
    """One per process."""
    return AsyncAnthropic(max_retries=0)


@DBOS.step()
async def ask(messages: list[Any]) -> list[dict[str, Any]]:
    """One model call; its content, as data."""
    async with client().messages.stream(
        model=MODEL,
        max_tokens=1000,
        messages=messages,
        tools=[{"name": TOOL, "description": TOOL_SAYS, "input_schema": TOOL_SCHEMA}],
    ) as stream:
        reply = await stream.get_final_message()
    return [block.model_dump(mode="json", exclude_none=True) for block in reply.content]


@DBOS.step()
async def use(call: dict[str, Any]) -> dict[str, Any]:
    """One tool call; its result for the model."""
    answer = str(add(**call["input"]))
    return {"type": "tool_result", "tool_use_id": call["id"], "content": answer}


@DBOS.workflow()
async def turn(text: str) -> None:
    """Ask, use tools, ask again, until there are no more tools to use."""
    messages: list[Any] = [{"role": "user", "content": text}]
    while True:
        said = await ask(messages)
        messages.append({"role": "assistant", "content": said})
        calls = [block for block in said if block["type"] == "tool_use"]
        if not calls:
            return
        messages.append({"role": "user", "content": [await use(call) for call in calls]})


async def run(task: Task) -> None:
    """Start the task's workflow, and wait for its end."""
    with SetWorkflowID(task.id):
        # Not `await turn(...)`: this also gives its statements DBOS' own pool of threads; asyncio's
        # has but four more than there are CPUs.
        handle = await DBOS.start_workflow_async(turn, task.text)
    await handle.get_result()


async def main() -> None:
    """Serve tasks. The system tables are a schema in the run's database."""
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": os.environ["BENCH_DATABASE_DSN"],
        "sys_db_pool_size": 50,
        "log_level": "WARNING",
    }
    DBOS(config=config)
    DBOS.launch()
    async with client():
        await serve(run)
    DBOS.destroy()


if __name__ == "__main__":
    asyncio.run(main())
