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
        if call.kind is CallKind.LOCAL
    ]
    others = [
        call
        for call in loaded.snapshot.calls
        if not call.answered and (call.kind is not CallKind.LOCAL or call.asks)
    ]
    _run(held, loaded, asked)
    _commit(held, loaded, asks=any(c.asks for c in others), outside=bool(others))


def finish_tools(
    held: Held, loaded: Loaded, requested: Sequence[ToolCall], plans: Mapping[str, CallPlan]
) -> None:
    """Run the local calls of a message that was just recorded."""
    ours = [c for c in requested if plans[c.call_id].kind is CallKind.LOCAL]
    _run(held, loaded, [call for call in ours if starts(plans[call.call_id])])
    _commit(
        held,
        loaded,
        asks=any(plan.approval or plan.kind is CallKind.CLIENT for plan in plans.values()),
        outside=any(plan.kind is not CallKind.LOCAL for plan in plans.values()),
    )


def starts(plan: CallPlan) -> bool:
    """Whether a call can begin as soon as it is recorded."""
    return plan.kind in (CallKind.LOCAL, CallKind.EXTERNAL) and not plan.approval


def park(held: Held, loaded: Loaded, waits_for: CallKind) -> None:
    """Give the slot back and wait for answers from outside."""
    seconds = loaded.options.park_seconds or held.runtime.settings.park_seconds
    transition = machine.require_action if waits_for is CallKind.CLIENT else machine.sleep
    held.write(transition, deadline_seconds=seconds, results=held.results)


def _commit(held: Held, loaded: Loaded, *, asks: bool, outside: bool) -> None:
    if asks:
        park(held, loaded, CallKind.CLIENT)
    elif outside:
        park(held, loaded, CallKind.EXTERNAL)
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
            held.tools(loaded).registry,
            make_context=context,
            cancellation=held.cancellation,
            active=held.tools(loaded).active,
            default_timeout=runtime.settings.tool_seconds,
            context_limit=provider.profile(model).context_limit,
            on_result=finished,
        ),
        held.cancellation,
    )
    if ran.cause is not None:
        held.untouched = ran.untouched
        raise Cancelled(ran.cause)
