"""Running the tools that an assistant message asked for, and parking for those that are not ours.

The message stands in history before any tool runs. Results are collected in `Held.results` as they
come, so that a stop or a shutdown keeps those that finished; all go into history in one commit.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from models import machine
from models.snapshot import Loaded
from rejoinder.core.cancellation import Cancellation, Cancelled
from rejoinder.core.decide import Call
from rejoinder.core.messages import CallKind, CallPlan, CallState
from rejoinder.core.parts import ToolCall, ToolResult
from rejoinder.providers import provider_for
from rejoinder.tools import Ran, ToolContext, run_calls
from tasks.held import Held


def run_tools(held: Held, loaded: Loaded, calls: Sequence[Call]) -> None:
    """Run calls that another step left behind."""
    waiting = [call.call_id for call in calls if call.state is CallState.REQUESTED]
    if waiting:
        held.write(machine.start_tools, waiting)
    asked = [
        ToolCall(
            call.call_id, call.name, call.arguments if isinstance(call.arguments, dict) else {}
        )
        for call in calls
    ]
    others = [
        call
        for call in loaded.snapshot.calls
        if call.kind is not CallKind.LOCAL and not call.answered
    ]
    _run(held, loaded, asked)
    _commit(held, {call.kind for call in others})


def finish_tools(
    held: Held, loaded: Loaded, requested: Sequence[ToolCall], plans: Mapping[str, CallPlan]
) -> None:
    """Run the local calls of a message that was just recorded."""
    local = [call for call in requested if plans[call.call_id].kind is CallKind.LOCAL]
    _run(held, loaded, local)
    _commit(held, {plan.kind for plan in plans.values()} - {CallKind.LOCAL})


def park(held: Held, waits_for: CallKind) -> None:
    """Give the slot back and wait for answers from outside."""
    seconds = held.runtime.settings.park_seconds
    transition = machine.require_action if waits_for is CallKind.CLIENT else machine.sleep
    held.write(transition, deadline_seconds=seconds, results=held.results)


def _commit(held: Held, outside: set[CallKind]) -> None:
    if CallKind.CLIENT in outside:
        park(held, CallKind.CLIENT)
    elif CallKind.EXTERNAL in outside:
        park(held, CallKind.EXTERNAL)
    else:
        held.write(machine.commit, results=held.results)


def _run(held: Held, loaded: Loaded, calls: Sequence[ToolCall]) -> None:
    runtime = held.runtime
    provider, model = provider_for(loaded.model or runtime.settings.model)

    def finished(result: ToolResult) -> None:
        if held.left:
            return  # too late: the step has ended without it
        held.results.append(result)
        held.tell("tool", call_id=result.call_id, state="finished", is_error=result.is_error)

    def context(call: ToolCall, stop: Cancellation) -> ToolContext:
        held.tell("tool", call_id=call.call_id, name=call.name, state="started")
        return ToolContext(
            held.chat_id,
            held.turn_id,
            call.call_id,
            call.name,
            stop,
            lambda data: held.tell("tool", call_id=call.call_id, state="progress", data=data),
        )

    ran: Ran = runtime.run(
        partial(
            run_calls,
            calls,
            runtime.tools,
            make_context=context,
            cancellation=held.cancellation,
            active=loaded.active,
            default_timeout=runtime.settings.tool_seconds,
            context_limit=provider.profile(model).context_limit,
            on_result=finished,
        ),
        held.cancellation,
    )
    if ran.cause is not None:
        held.untouched = ran.untouched
        raise Cancelled(ran.cause)
