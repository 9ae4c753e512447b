"""Sub-agents: tools by which a chat has child chats work for it.

A child is an ordinary chat with a parent. Waiting for children holds no worker: `wait_agent` parks
the chat, a child that comes to rest wakes it (`dispatch.wake`; behind it, the sweep), and the step
then looks at the children (`answers`). Whatever goes wrong here is an error result for the model,
never a failure of the chat. The transitions are `models/machine/agents.py`; docs/agents.md.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Annotated, Any
from uuid import NAMESPACE_URL, UUID, uuid5

from pydantic import Field
from sqlalchemy.orm import Session

from models import machine, trees
from models.engine import transaction
from models.machine.agents import not_below
from models.snapshot import Loaded
from rejoinder.core.decide import Call
from rejoinder.core.effects import Effects
from rejoinder.core.errors import Rejected
from rejoinder.core.limits import MOST_TITLE
from rejoinder.core.messages import CallKind, CallPlan
from rejoinder.core.parts import Json, Text, ToolCall, ToolResult
from rejoinder.core.settings import Settings
from rejoinder.core.state import Status
from rejoinder.providers import provider_for
from rejoinder.tools import FunctionTool, Tool, ToolContext, ToolError, cap, content_of, tool
from rejoinder.tools.schema import ArgumentsError
from tasks.db_retry import retrying
from tasks.dispatch import publish
from tasks.runtime import Runtime, current

WAIT_SECONDS = 300.0
MOST_WAIT_SECONDS = 86_400.0
MOST_IDS = 100
MOST_LISTED = 50

DELEGATE = Text(
    "You are a sub-agent: another agent has delegated the task in the first message to you, and"
    " nobody else reads this chat. Work on that task alone, and do not ask back unless you cannot"
    " go on. Your last message is your report, and all that the other agent gets to see of your"
    " work: make it complete and self-contained."
)
"""What a child is told beside its parent's own instructions."""

_Act = Callable[[Session, machine.Limits], tuple[Effects, ...]]
Ids = Annotated[list[UUID], Field(min_length=1, max_length=MOST_IDS)]


def tools_for(loaded: Loaded, settings: Settings) -> Sequence[Tool]:
    """The tools of a chat that may have agents; none for one that may not, or is too deep."""
    if not loaded.options.agents or loaded.depth >= settings.agent_depth:
        return ()
    wait = replace(_WAIT, chat_id=loaded.chat_id)
    return (spawn_agent, wait, message_agent, interrupt_agent, list_agents)


@tool(idempotent=True)
def spawn_agent(
    context: ToolContext, prompt: str, title: str | None = None, model: str | None = None
) -> dict[str, Json]:
    """Have a sub-agent work on a task, in a chat of its own, while you go on.

    It has your tools but sees nothing of this conversation: give it everything that it needs to
    know. Get its report with wait_agent. Independent tasks are best spawned all at once.

    Args:
        prompt: The task, complete in itself.
        title: A few words for people.
        model: Another model than yours, as provider:model.
    """
    with _refusals():
        if model:
            provider_for(model)
        title = (title or "").strip()[:MOST_TITLE] or None
        errand = machine.Errand(prompt, DELEGATE, title, model)
        _, child = _publish_after(
            lambda tx, limits: (machine.spawn(tx, _caller(context), errand, limits),)
        )
        return _shown(child)


@tool(idempotent=True)
def message_agent(
    context: ToolContext, chat_id: UUID, message: str, *, interrupt: bool = False
) -> dict[str, Json]:
    """Send a sub-agent of yours a message: what to do next, or differently.

    It works on it when it has finished what it does now. Wait for the answer with wait_agent.

    Args:
        chat_id: The agent, as spawn_agent gave it.
        message: What to tell it.
        interrupt: Stop what it does now, and work on this instead.
    """
    with _refusals():
        effects, child = _publish_after(
            lambda tx, limits: machine.message_agent(
                tx, _caller(context), chat_id, (Text(message),), limits, interrupt=interrupt
            )
        )
        queued = effects.queued_id is not None
        return {**_shown(child), "queued": queued, "interrupted": _stopped(effects)}


@tool(idempotent=True)
def interrupt_agent(context: ToolContext, chat_id: UUID) -> dict[str, Json]:
    """Stop a sub-agent of yours, and those that work for it. What it has written stays.

    Args:
        chat_id: The agent, as spawn_agent gave it.
    """
    with _refusals():
        _refuse_strangers(context.chat_id, [chat_id])
        effects, child = _publish_after(lambda tx, _: machine.interrupt_tree(tx, chat_id))
        return {**_shown(child), "interrupted": _stopped(effects)}


@tool(idempotent=True)
def list_agents(
    context: ToolContext,
    limit: Annotated[int, Field(ge=1, le=MOST_LISTED)] = 10,
    offset: Annotated[int, Field(ge=0)] = 0,
) -> dict[str, Json]:
    """List your sub-agents and what they are doing, the last to move first.

    Args:
        limit: How many.
        offset: How many to pass over first.
    """
    with transaction(current().engine) as tx:
        page, total = trees.children(tx, context.chat_id, limit=limit, offset=offset)
        found = trees.look(tx, page)
    listed = [_shown(found[each]) for each in page if each in found]
    return {"agents": listed, "total": total, "has_more": offset + len(page) < total}


@tool(idempotent=True)
def wait_agent(
    context: ToolContext,
    chat_id: UUID | None = None,
    ids: Ids | None = None,
    timeout_seconds: float = WAIT_SECONDS,
) -> dict[str, Json]:
    """Wait until sub-agents of yours have finished, and get their reports.

    An agent that has not finished in time is marked `timed_out`, and goes on: wait for it again, or
    interrupt it. One that failed is told with its `error`.

    Args:
        chat_id: The agent to wait for.
        ids: Or several: all of them are waited for.
        timeout_seconds: How long to wait at most.
    """
    del timeout_seconds
    with _refusals():
        _refuse_strangers(context.chat_id, _wanted(chat_id, ids))
        raise Rejected("This call cannot wait", "call wait_agent again")


@dataclass(frozen=True, eq=False)
class _WaitAgent(FunctionTool[..., Any]):
    """Its function is only called for what cannot be waited for: it says why not."""

    chat_id: UUID | None = field(default=None, kw_only=True)
    """Whose agents may be waited for."""

    def plan_for(self, call: ToolCall) -> CallPlan:
        """Wait for children, if the arguments say for which, and if they are this chat's own."""
        try:
            asked = self.signature.check(self.name, call.arguments)
            ids = _wanted(asked.get("chat_id"), asked.get("ids"))
            if self.chat_id is None or _strangers(self.chat_id, ids):
                return self.plan
        except (ArgumentsError, Rejected):
            return self.plan
        seconds = asked.get("timeout_seconds", WAIT_SECONDS)
        seconds = min(seconds, MOST_WAIT_SECONDS) if seconds > 0 else WAIT_SECONDS
        return CallPlan(CallKind.CHILDREN, seconds=seconds, waits_for=ids)


_WAIT = _WaitAgent(
    spec=wait_agent.spec,
    plan=wait_agent.plan,
    location=wait_agent.location,
    function=wait_agent.function,
    signature=wait_agent.signature,
)


def answers(runtime: Runtime, calls: Iterable[Call], limit: int) -> list[ToolResult]:
    """The results of those calls that wait for children and need not wait any longer.

    Looked at before the chat goes to sleep. A child that comes to rest after that look wakes the
    chat, and `sleep` heeds a wake-up that came first: none is lost in between.
    """
    waiting = [call for call in calls if call.kind is CallKind.CHILDREN and not call.asks]
    if not waiting:
        return []
    seen = _see(runtime, waiting)
    return [
        ToolResult(call.call_id, content_of(_outcome(call, *seen, limit), sys.maxsize))
        for call in waiting
        if call.overdue or not _busy(call, seen[0])
    ]


_Seen = Mapping[UUID, trees.Below]


@retrying
def _see(runtime: Runtime, calls: Sequence[Call]) -> tuple[_Seen, Mapping[UUID, str]]:
    ids = [each for call in calls for each in call.waits_for]
    with transaction(runtime.engine) as tx:
        found = trees.look(tx, ids)
        over = [call for call in calls if call.overdue or not _busy(call, found)]
        ended = {each for call in over for each in call.waits_for if each not in _busy(call, found)}
        return found, trees.last_words(tx, [*ended]) if ended else {}


def _busy(call: Call, found: _Seen) -> set[UUID]:
    return {each for each in call.waits_for if each in found and not found[each].at_rest}


def _outcome(call: Call, found: _Seen, words: Mapping[UUID, str], limit: int) -> dict[str, Json]:
    """What became of each child. They share the room that a result has."""
    share = limit // max(1, len(call.waits_for))
    agents: list[Json] = []
    for chat_id in call.waits_for:
        child = found.get(chat_id)
        if child is None:
            gone: Json = {"kind": "deleted", "message": "This chat was deleted."}
            agents.append({"chat_id": str(chat_id), "status": "deleted", "error": gone})
        elif child.at_rest:
            report = words.get(chat_id)
            agents.append({**_shown(child), "report": cap(report, share) if report else None})
        else:
            agents.append({**_shown(child), "timed_out": True})
    return {"agents": agents, "timed_out": bool(_busy(call, found))}


def _shown(child: trees.Below) -> dict[str, Json]:
    """A child as the model sees it."""
    shown: dict[str, Json] = {
        "chat_id": str(child.chat_id),
        "title": child.title,
        "status": "archived" if child.archived else child.status,
    }
    if child.interrupted and child.status is Status.WAITING:
        shown["interrupted"] = True
    if child.last_error is not None:
        told = ("kind", "message", "retryable")
        shown["error"] = {name: child.last_error[name] for name in told if name in child.last_error}
    return shown


def _wanted(chat_id: UUID | None, ids: Sequence[UUID] | None) -> tuple[UUID, ...]:
    named = ([chat_id] if chat_id else []) + list(ids or ())
    if not named:
        raise Rejected("Nobody was named", "give chat_id, or ids for several")
    return tuple(dict.fromkeys(named))


def _caller(context: ToolContext) -> machine.Caller:
    # Short, and of plain characters, whatever a provider's call ids look like.
    key = f"agent:{uuid5(NAMESPACE_URL, context.idempotency_key)}"
    return machine.Caller(context.chat_id, context.turn_id, key)


def _publish_after(act: _Act) -> tuple[Effects, trees.Below]:
    """Run transitions in one transaction, publish what follows, and tell of the first's chat."""
    runtime = current()
    settings = runtime.settings
    limits = machine.Limits(settings.agent_depth, settings.agents_at_once, settings.agents_total)

    @retrying
    def run() -> tuple[tuple[Effects, ...], trees.Below]:
        with transaction(runtime.engine) as tx:
            done = act(tx, limits)
            (child,) = trees.look(tx, [done[0].chat_id]).values()
        return done, child

    all_effects, child = run()
    for effects in all_effects:
        publish(runtime, effects)
    return all_effects[0], child


@retrying
def _strangers(chat_id: UUID, ids: Sequence[UUID]) -> set[UUID]:
    with transaction(current().engine) as tx:
        return set(ids) - trees.below(tx, chat_id, ids)


def _refuse_strangers(chat_id: UUID, ids: Sequence[UUID]) -> None:
    if strangers := _strangers(chat_id, ids):
        raise not_below(*sorted(strangers))


def _stopped(effects: Effects) -> bool:
    return effects.changed and (bool(effects.ended) or effects.status is Status.INTERRUPTING)


@contextmanager
def _refusals() -> Iterator[None]:
    """A refusal is for the model to read."""
    try:
        yield
    except Rejected as refusal:
        raise ToolError(str(refusal)) from None
