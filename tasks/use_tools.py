"""Running the tools that an assistant message asked for, and parking for those that are not ours.

The message stands in history before any tool runs. Results are collected in `Held.results` as they
come, so that a stop or a shutdown keeps those that finished; all go into history in one commit.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from models import machine
from models.snapshot import Loaded
from rejoinder.core.cancellation import Cancellation, Cancelled
from rejoinder.core.decide import Call
from rejoinder.core.messages import Approval, CallKind, CallPlan, CallState
from rejoinder.core.parts import ToolCall, ToolResult
from rejoinder.providers import provider_for
from rejoinder.tools import Run, ToolContext, result_limit, run_calls
from tasks import agents
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
    _run(held, loaded, asked)
    _commit(held, loaded, _for_others(loaded.snapshot.calls))


def finish_tools(
    held: Held, loaded: Loaded, requested: Sequence[ToolCall], plans: Mapping[str, CallPlan]
) -> None:
    """Run the local calls of a message that was just recorded."""
    ours = [c for c in requested if plans[c.call_id].kind is CallKind.LOCAL]
    for call in requested:
        if plans[call.call_id].kind is CallKind.CHILDREN:
            held.tell("tool", call_id=call.call_id, name=call.name, state="started")
    _run(held, loaded, [call for call in ours if starts(plans[call.call_id])])
    _commit(held, loaded, _for_others(_recorded(c, plans[c.call_id]) for c in requested))


def starts(plan: CallPlan) -> bool:
    """Whether a call can begin as soon as it is recorded."""
    return plan.kind in (CallKind.LOCAL, CallKind.EXTERNAL) and not plan.approval


def park(held: Held, loaded: Loaded, waits_for: CallKind) -> None:
    """Give the slot back and wait for answers from outside."""
    _park(held, loaded, waits_for, _for_others(loaded.snapshot.calls))


def _park(held: Held, loaded: Loaded, waits_for: CallKind, calls: Sequence[Call]) -> None:
    seconds = loaded.options.park_seconds or held.runtime.settings.park_seconds
    if waits_for is CallKind.CLIENT:
        held.write(machine.require_action, deadline_seconds=seconds, results=held.results)
        return
    for result in agents.answers(held.runtime, calls, result_limit(_context(held, loaded))):
        held.results.append(result)
        held.tell("tool", call_id=result.call_id, state="finished", is_error=result.is_error)
    held.write(machine.sleep, deadline_seconds=seconds, results=held.results)


def _commit(held: Held, loaded: Loaded, others: Sequence[Call]) -> None:
    if others:
        asks = any(call.asks for call in others)
        _park(held, loaded, CallKind.CLIENT if asks else CallKind.EXTERNAL, others)
    else:
        held.commit(results=held.results)


def _for_others(calls: Iterable[Call]) -> list[Call]:
    """Those that somebody else has to answer, or to allow first."""
    return [c for c in calls if not c.answered and (c.kind is not CallKind.LOCAL or c.asks)]


def _recorded(call: ToolCall, plan: CallPlan) -> Call:
    """A call that has just been recorded, as a snapshot would show it."""
    approval = Approval.WANTED if plan.approval else None
    return Call(
        call.call_id,
        call.name,
        call.arguments,
        plan.kind,
        CallState.REQUESTED,
        approval=approval,
        waits_for=plan.waits_for,
    )


def _context(held: Held, loaded: Loaded) -> int:
    provider, model = provider_for(loaded.model or held.runtime.settings.model)
    return provider.profile(model).context_limit


def _run(held: Held, loaded: Loaded, calls: Sequence[ToolCall]) -> None:
    runtime = held.runtime

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

    toolbox = held.tools(loaded)
    run = Run(
        registry=toolbox.registry,
        make_context=context,
        cancellation=held.cancellation,
        active=toolbox.active,
        default_timeout=runtime.settings.tool_seconds,
        max_abandoned=runtime.settings.max_abandoned_threads,
        context_limit=_context(held, loaded),
        on_result=finished,
    )

    with held.away("tools"):
        ran = runtime.run(partial(run_calls, run, calls), held.cancellation)
    if ran.cause is not None:
        held.untouched = ran.untouched
        raise Cancelled(ran.cause)
