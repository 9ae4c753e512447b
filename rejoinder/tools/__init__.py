"""Tools: typed functions that a model can call.

`@tool` makes one (`define.py`), a `Registry` holds them, `run_calls` runs what a model asked for.
Tools touch the network and the world, never rows or the broker. How to write one: docs/tools.md.
"""

from rejoinder.tools.cap import cap, result_limit
from rejoinder.tools.celery_tool import CeleryTool, celery_tool
from rejoinder.tools.context import ToolContext
from rejoinder.tools.define import Approve, FunctionTool, Tool, ToolError, tool
from rejoinder.tools.registry import Registry, default_registry
from rejoinder.tools.results import File, Image, content_of
from rejoinder.tools.run import DEFAULT_TIMEOUT, Ran, Run, run_calls
from rejoinder.tools.schema import ToolDefinitionError

__all__ = [
    "DEFAULT_TIMEOUT",
    "Approve",
    "CeleryTool",
    "File",
    "FunctionTool",
    "Image",
    "Ran",
    "Registry",
    "Run",
    "Tool",
    "ToolContext",
    "ToolDefinitionError",
    "ToolError",
    "cap",
    "celery_tool",
    "content_of",
    "default_registry",
    "result_limit",
    "run_calls",
    "tool",
]
