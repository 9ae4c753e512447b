"""The tools of one chat, and how each of its calls is to be answered.

The workers' tools that it may use, those that its app declared and answers itself, and built-in
ones. A tool that the app declared wins over a worker's of the same name: a deploy that adds one
must not take over the calls of chats that exist.
"""

from collections.abc import Iterable
from dataclasses import replace

from rejoinder.core.messages import CallKind, CallPlan
from rejoinder.core.model import ToolSpec
from rejoinder.core.options import ApprovalPolicy, ChatOptions, ClientTool
from rejoinder.core.parts import ToolCall
from rejoinder.tools.define import Tool
from rejoinder.tools.registry import Registry


class Toolbox:
    """What the model of one chat can call."""

    def __init__(
        self, workers: Registry, options: ChatOptions, built_in: Iterable[Tool] = ()
    ) -> None:
        """Put the chat's tools together."""
        declared = {each.spec.name: _declared(each) for each in options.client_tools}
        own = declared | {each.name: each for each in built_in if each.name not in declared}
        self.registry = Registry(
            [*own.values(), *(each for each in workers if each.name not in own)]
        )
        self.active = frozenset(
            name
            for name in self.registry.names
            if name in own or options.tools is None or name in options.tools
        )
        self._options = options

    def specs(self) -> tuple[ToolSpec, ...]:
        """What to tell the model."""
        return self.registry.specs(self.active)

    def plans(self, calls: Iterable[ToolCall]) -> dict[str, CallPlan]:
        """How each call is answered, by call id; what cannot be called, by the worker: no."""
        return {call.call_id: self._plan(call) for call in calls}

    def _plan(self, call: ToolCall) -> CallPlan:
        tool = self.registry.get(call.name)
        if tool is None or tool.name not in self.active:
            return CallPlan()
        plan = tool.plan_for(call)
        needs_approval = self._needs_approval(tool, plan)
        if (needs_approval or plan.kind is CallKind.EXTERNAL) and tool.objection(call):
            return CallPlan()  # the worker says so: nobody is asked, nothing is sent
        return replace(plan, approval=needs_approval)

    def _needs_approval(self, tool: Tool, plan: CallPlan) -> bool:
        if plan.kind is CallKind.CLIENT:
            return False  # whoever answers it decides
        if tool.name in self._options.approve:
            return True
        match self._options.approval:
            case ApprovalPolicy.ALL:
                return True
            case ApprovalPolicy.NONE:
                return False
            case ApprovalPolicy.DECLARED:
                return plan.approval


def _declared(tool: ClientTool) -> Tool:
    plan = CallPlan(CallKind.CLIENT, seconds=tool.seconds, default=tool.default)
    return Tool(tool.spec, plan, "declared by the chat's app")
