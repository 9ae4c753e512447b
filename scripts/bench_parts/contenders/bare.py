"""A loop around the SDK: no queue, no database, nothing survives. The floor of any agent."""

import asyncio
from typing import Any, cast

from anthropic import AsyncAnthropic

from scripts.bench_parts.contenders.program import serve
from scripts.bench_parts.task import MODEL, TOOL, TOOL_SAYS, TOOL_SCHEMA, Task, add


async def main() -> None:
    """Serve tasks with one client."""
    async with AsyncAnthropic(max_retries=0) as client:

        async def run(task: Task) -> None:
            messages: list[Any] = [{"role": r, "content": c} for r, c in task.history]
            messages.append({"role": "user", "content": task.text})
            while True:
                async with client.messages.stream(
                    model=MODEL,
                    max_tokens=1000,
                    messages=messages,
                    tools=[{"name": TOOL, "description": TOOL_SAYS, "input_schema": TOOL_SCHEMA}],
                ) as stream:
                    reply = await stream.get_final_message()
                messages.append({"role": "assistant", "content": reply.content})
                if reply.stop_reason != "tool_use":
                    return
                results = [
                    {
                        "type": "tool_result",
                        "tool_use_id": block.id,
                        "content": str(add(**cast("Any", block.input))),
                    }
                    for block in reply.content
                    if block.type == "tool_use"
                ]
                messages.append({"role": "user", "content": results})

        await serve(run)


if __name__ == "__main__":
    asyncio.run(main())
