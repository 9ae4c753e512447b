"""What contenders that are programs share: tasks come in by the line, "done" goes out.

What the runs of tasks return goes out behind it, as JSON.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable

from scripts.bench_parts.task import Task

Run = Callable[[Task], Awaitable[object]]


async def serve(run: Run) -> None:
    """Run each line of tasks, all at once, until there are no more lines."""
    print("ready", flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        tasks = [Task(**each) for each in json.loads(line)]
        results = await asyncio.gather(*(run(task) for task in tasks))
        print("done", json.dumps(results, default=repr), flush=True)
