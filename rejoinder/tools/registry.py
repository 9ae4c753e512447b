"""Which tools there are: an explicit `Registry`, and a default one that a worker fills at start.

Order is by name, so that the same tools give the same prompt in every process, whatever was
imported first. Two tools of one name are refused. Nothing here runs a tool: see `run.py`.
"""

import importlib
from collections.abc import Collection, Iterable, Iterator
from types import ModuleType

from rejoinder.core.errors import Rejected
from rejoinder.core.messages import CallPlan
from rejoinder.core.model import ToolSpec
from rejoinder.core.parts import ToolCall
from rejoinder.tools.define import Tool


class Registry:
    """Tools by name."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        """Begin with these."""
        self._tools: dict[str, Tool] = {}
        for each in tools:
            self.add(each)

    def add(self, tool: Tool) -> None:
        """Add a tool. The same one twice is fine; another one of its name is refused."""
        if not isinstance(tool, Tool):
            raise Rejected(f"{tool!r} is no tool", "decorate the function with @tool")
        known = self._tools.setdefault(tool.name, tool)
        if known is not tool:
            raise Rejected(
                f"Two tools are named {tool.name!r}: {known.location} and {tool.location}",
                "give one of them another name, with @tool(name=…)",
            )

    def get(self, name: str) -> Tool | None:
        """The tool of that name, or None."""
        return self._tools.get(name)

    def __iter__(self) -> Iterator[Tool]:
        return iter([self._tools[name] for name in self.names])

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __len__(self) -> int:
        return len(self._tools)

    @property
    def names(self) -> tuple[str, ...]:
        """All names, in order."""
        return tuple(sorted(self._tools))

    def specs(self, active: Collection[str] | None = None) -> tuple[ToolSpec, ...]:
        """What to tell the model: all tools, or the active ones among them.

        An active name that this worker does not know is left out: another release may know it.
        """
        return tuple(each.spec for each in self if active is None or each.name in active)

    def plan(self, name: str) -> CallPlan:
        """How a call of that name is answered; an unknown one by the worker, with an error."""
        known = self._tools.get(name)
        return known.plan if known else CallPlan()

    def plans(self, calls: Iterable[ToolCall]) -> dict[str, CallPlan]:
        """The plan of each call, by call id: what to record with an assistant message."""
        return {call.call_id: self.plan(call.name) for call in calls}

    def load_modules(self, modules: str | Iterable[str]) -> list[Tool]:
        """Import modules ("myapp.tools,other.tools") and add the tools in them.

        A module's tools are the ones it lists as `TOOLS`, else every tool among its names, those
        that it imported from elsewhere included.
        """
        names = modules.split(",") if isinstance(modules, str) else modules
        loaded: list[Tool] = []
        for name in filter(None, (name.strip() for name in names)):
            loaded.extend(_tools_of(_import(name)))
        for each in loaded:
            self.add(each)
        return loaded


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise Rejected(
            f"The tools module {name!r} cannot be imported ({type(error).__name__}: {error})",
            "check the name in REJOINDER_TOOLS, and that the worker finds it on PYTHONPATH",
        ) from error


def _tools_of(module: ModuleType) -> list[Tool]:
    declared = getattr(module, "TOOLS", None)
    found = vars(module).values() if declared is None else declared
    tools = [each for each in found if isinstance(each, Tool)]
    if declared is not None and len(tools) != len(declared):
        raise Rejected(
            f"TOOLS in {module.__name__!r} holds something that is no tool",
            "decorate the function with @tool",
        )
    if not tools:
        raise Rejected(
            f"The tools module {module.__name__!r} has no tool in it",
            "decorate a function with @tool, or take the module out of REJOINDER_TOOLS",
        )
    return tools


default_registry = Registry()
"""The one that a worker uses; REJOINDER_TOOLS fills it."""
