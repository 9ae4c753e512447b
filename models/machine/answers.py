"""What somebody outside does for a chat that requires action: results, approvals, refusals.

Each call is answered or decided once; the chat goes on when nothing more is asked of anybody.
"""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy.orm import Session

from models.machine import calls, history, queue
from models.machine.change import Change, begin
from rejoinder.core.effects import Effects
from rejoinder.core.errors import Rejected
from rejoinder.core.messages import ActionKind, Approval, CallKind
from rejoinder.core.parts import ToolResult
from rejoinder.core.state import Status, Transition


def submit_results(
    tx: Session, chat_id: UUID, results: Sequence[ToolResult], *, turn_id: UUID | None = None
) -> Effects:
    """submit_results: requires_action → pending; the results must cover the open client calls.

    With `turn_id`, only for that turn: models reuse call ids, and an old answer must not fit.
    """
    change = begin(tx, chat_id, Transition.SUBMIT_RESULTS)
    if not history.is_open(change, turn_id):
        raise Rejected("The results are for an earlier turn", "read the chat again")
    open_calls = calls.unsettled(change)
    wanted = {
        call.call_id
        for call in calls.unanswered(open_calls, CallKind.CLIENT)
        if call.approval is not Approval.WANTED
    }
    given = [result.call_id for result in results]
    wrong = [
        f"{what} {', '.join(map(repr, sorted(ids)))}"
        for what, ids in (
            ("twice", {call_id for call_id in given if given.count(call_id) > 1}),
            ("unexpected", set(given) - wanted),
            ("missing", wanted - set(given)),
        )
        if ids
    ]
    if wrong:
        raise Rejected(
            f"The results do not fit the open tool calls: {'; '.join(wrong)}",
            "give one result for each call that asks for one, and no others; calls that wait for"
            " approval take approve or deny",
        )
    calls.answer(change, open_calls, results)
    _acted(change, open_calls)
    return change.effects()


def approve(  # noqa: PLR0913  # what is decided, and how
    tx: Session,
    chat_id: UUID,
    call_ids: Sequence[str] | None = None,
    *,
    approved: bool,
    reason: str | None = None,
    turn_id: UUID | None = None,
) -> Effects:
    """approve, deny: requires_action → pending, once nothing else is asked; all calls, or some.

    With `turn_id`, only for that turn: models reuse call ids, and a late click must not fit.
    """
    change = begin(tx, chat_id, Transition.APPROVE)
    if not history.is_open(change, turn_id):
        raise Rejected("The approval is for an earlier turn", "read the chat again")
    open_calls = calls.unsettled(change)
    wanted = [c for c in calls.unanswered(open_calls) if c.approval is Approval.WANTED]
    known = {call.call_id for call in wanted}
    chosen = known if call_ids is None else set(call_ids)
    if not chosen or chosen - known:
        missing = ", ".join(sorted(map(repr, chosen - known))) or "any call"
        raise Rejected(
            f"Nobody is asked to approve {missing}",
            "it was decided already, or needs no approval; read the chat again",
        )
    decided = [call for call in wanted if call.call_id in chosen]
    calls.decide(change, decided, approved=approved, note=reason)
    _acted(change, open_calls)
    return change.effects()


def _acted(change: Change, open_calls: calls.Calls) -> None:
    """Somebody outside has acted: the chat goes on, unless more is asked of them."""
    calls.settle(change, open_calls)
    left = calls.asking(open_calls)
    if not left:
        queue.go_on(change)
        return
    deadline = min((c.deadline for c in left if c.deadline), default=change.chat.deadline)
    change.to(Status.REQUIRES_ACTION, deadline=deadline, action=ActionKind.CALLS)
    calls.ask(change, left)
