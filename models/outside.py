"""Calls that other apps' tasks are to answer, as far as the sweep has to look after them.

Only reads: what becomes of a call is the machine's (`wake`, `expire`), and that the broker took its
task is noted by `claims.sent`.
"""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import and_, func, select
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
    tx: Session, after: datetime | None, *, limit: int = 200
) -> tuple[list[Outside], datetime | None]:
    """Calls of parked chats that have waited a while, and where to go on; None: that was all.

    So many chats at a time, so that a sweep stays short however many sleep: `after` is where the
    last look ended. Indexes: chats_parked, in its own order, and tool_calls_open. No lock: whoever
    acts on what is found checks again.
    """
    parked = select(Chat.id, Chat.deadline).where(Chat.deadline.is_not(None))
    if after is not None:
        parked = parked.where(Chat.deadline > after)
    some = parked.order_by(Chat.deadline).limit(limit).subquery()
    overdue = and_(
        ToolCallRow.chat_id == some.c.id,
        ~ToolCallRow.settled,
        ToolCallRow.kind == CallKind.EXTERNAL,
        ToolCallRow.state == CallState.STARTED,
        ToolCallRow.started_at <= func.statement_timestamp() - LOOK_AFTER,
    )
    rows = tx.execute(
        select(some.c.id, some.c.deadline, ToolCallRow).outerjoin(ToolCallRow, overdue)
    ).all()
    found = [_outside(row.ToolCallRow) for row in rows if row.ToolCallRow is not None]
    full = len({row.id for row in rows}) >= limit
    return found, max(row.deadline for row in rows) if full else None


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
