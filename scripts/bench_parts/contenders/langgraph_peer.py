"""LangGraph with its Postgres checkpointer: an agent node, a tools node, one thread per task.

The state is stored after each node, by default while the next one already runs (with the argument
`sync`: before it starts), so that a thread can go on where it was; but somebody has to call it
again (no queue, no lease), and a node that was cut off runs once more, its tools with it.

One saver serves all threads, one statement at a time: it has a lock, however large its pool is. By
default it falls behind a model that takes no time, by whole turns: only `sync` is durable here.
`.venv-peers/bin/python -m scripts.bench_parts.contenders.langgraph_peer [sync]`, see `program.py`.
"""

import asyncio
import operator
import os
import sys
from typing import Annotated, Any, TypedDict

from anthropic import AsyncAnthropic
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.graph import END, START, StateGraph
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from scripts.bench_parts.contenders.program import serve
from scripts.bench_parts.task import MODEL, TOOL, TOOL_SAYS, TOOL_SCHEMA, Task, add

# As the checkpointer asks of connections that it did not make itself.
CONNECTIONS: dict[str, Any] = {
    "autocommit": True,
    "prepare_threshold": 0,
    "row_factory": dict_row,
}


class State(TypedDict):
    """What is stored: the conversation."""

    messages: Annotated[list[Any], operator.add]


def graph(client: AsyncAnthropic) -> StateGraph:
    """Ask, use tools, ask again, until there are no more tools to use."""

    async def agent(state: State) -> State:
        async with client.messages.stream(
            model=MODEL,
            max_tokens=1000,
            messages=state["messages"],
            tools=[{"name": TOOL, "description": TOOL_SAYS, "input_schema": TOOL_SCHEMA}],
        ) as stream:
            reply = await stream.get_final_message()
        said = [block.model_dump(mode="json", exclude_none=True) for block in reply.content]
        return {"messages": [{"role": "assistant", "content": said}]}

    async def tools(state: State) -> State:
        results = [
            {
                "type": "tool_result",
                "tool_use_id": block["id"],
                "content": str(add(**block["input"])),
            }
            for block in state["messages"][-1]["content"]
            if block["type"] == "tool_use"
        ]
        return {"messages": [{"role": "user", "content": results}]}

    def after(state: State) -> str:
        said = state["messages"][-1]["content"]
        return "tools" if any(block["type"] == "tool_use" for block in said) else END

    made = StateGraph(State)
    made.add_node("agent", agent)
    made.add_node("tools", tools)
    made.add_edge(START, "agent")
    made.add_conditional_edges("agent", after, ["tools", END])
    made.add_edge("tools", "agent")
    return made


async def main(durability: str) -> None:
    """Serve tasks with one client, one pool and one saver."""
    os.environ["LANGSMITH_TRACING"] = "false"
    pool = AsyncConnectionPool(
        os.environ["BENCH_DATABASE_DSN"], max_size=50, kwargs=CONNECTIONS, open=False
    )
    async with AsyncAnthropic(max_retries=0) as client, pool:
        saver = AsyncPostgresSaver(pool)
        await saver.setup()
        agent = graph(client).compile(checkpointer=saver)

        async def run(task: Task) -> None:
            config = {"configurable": {"thread_id": task.id}, "recursion_limit": 2 * task.calls + 1}
            first = {"role": "user", "content": task.text}
            await agent.ainvoke({"messages": [first]}, config, durability=durability)

        await serve(run)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:] or ["async"]))
