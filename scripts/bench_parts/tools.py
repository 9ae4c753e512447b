"""The tool of the benchmark, for Rejoinder's workers."""

from rejoinder.tools import tool
from scripts.bench_parts import task

add = tool(task.add)
TOOLS = (add,)
