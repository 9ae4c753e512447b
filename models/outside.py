"""Calls that other apps' tasks are to answer, as far as the sweep has to look after them.

Only reads: what becomes of a call is the machine's (`wake`, `expire`), and that the broker took its
task is noted by `claims.sent`.
"""

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from models.tables import Chat, ToolCallRow
from rejoinder.core.effects import Send
from rejoinder.core.limits import LOOK_AFTER
from rejoinder.core.messages import CallKind, CallState, Delivery


@dataclass(frozen=True)
class Outside:
    """A call that another app's task has not answered yet."""

    send: Send
    sent: bool
    """Whether the broker is known to have taken it."""


def waiting(
    tx: Session, after: int | None, *, limit: int = 200
) -> tuple[list[Outside], int | None]:
    """Calls of parked chats that have waited a while, and where to go on; None: that was all.

    So many at a time, so that a sweep stays short however many chats sleep: `after` is where the
    last look ended. Index: tool_calls_outside, in its own order. No lock: whoever acts on what is
    found checks again.
    """
    rows = tx.scalars(
        select(ToolCallRow)
        .join(Chat, Chat.id == ToolCallRow.chat_id)
        .where(
            ToolCallRow.kind == CallKind.EXTERNAL,
            ~ToolCallRow.settled,
            ToolCallRow.id > (after or 0),
            ToolCallRow.state == CallState.STARTED,
            ToolCallRow.started_at <= func.statement_timestamp() - LOOK_AFTER,
            Chat.deadline.is_not(None),
        )
        .order_by(ToolCallRow.id)
        .limit(limit)
    ).all()
    return [_outside(row) for row in rows], rows[-1].id if len(rows) == limit else None


def _outside(call: ToolCallRow) -> Outside:
    return Outside(
        Send(
            call.chat_id,
            call.call_id,
            call.name,
            call.external_id or "",
            call.arguments,
            call.delivery is Delivery.IDEMPOTENT,
        ),
        call.sent,
    )
