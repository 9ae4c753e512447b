"""What chats and owners have used, as apps read it: tokens by kind, time, and money.

Money is given twice: `cost` in dollars, exact, as text, and `cost_micros` for sums. Calls whose
price nobody knows are counted in `unpriced_calls`: the cost is at least what it says.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from models.tables import Chat, Message
from rejoinder.core.messages import Budget, Used
from rejoinder.core.money import dollars

_TOKENS = (
    Message.input_tokens,
    Message.output_tokens,
    Message.cache_read_tokens,
    Message.cache_write_tokens,
    Message.reasoning_tokens,
)


def used_by(chat: Chat) -> Used:
    """What the model calls of one chat have taken, those of deleted messages included."""
    return Used(
        calls=chat.used_calls,
        input_tokens=chat.used_input,
        output_tokens=chat.used_output,
        cache_read_tokens=chat.used_cache_read,
        cache_write_tokens=chat.used_cache_write,
        reasoning_tokens=chat.used_reasoning,
        cost_micros=chat.used_micros,
        unpriced_calls=chat.used_unpriced,
        runtime_ms=chat.used_ms,
    )


def told(used: Used) -> dict[str, Any]:
    """A sum, ready for JSON."""
    return {**vars(used), "tokens": used.tokens, "cost": dollars(used.cost_micros)}


def told_budget(budget: Budget) -> dict[str, Any] | None:
    """A budget, ready for JSON; None is no limit at all."""
    if budget == Budget():
        return None
    cost = None if budget.micros is None else dollars(budget.micros)
    return {"tokens": budget.tokens, "cost": cost, "cost_micros": budget.micros}


def owner_usage(
    tx: Session, owner: str, *, since: datetime | None = None, until: datetime | None = None
) -> dict[str, Any]:
    """What an owner's chats have used in a period, by model and in all: from `since`, to `until`.

    From the messages, deleted ones included: an edit gives no tokens back. Indexes: chats_owner,
    and the messages' own by chat.
    """
    unpriced = func.count().filter(Message.cost_micros.is_(None))
    sums = [
        func.coalesce(func.sum(column), 0)
        for column in (*_TOKENS, Message.cost_micros, Message.runtime_ms)
    ]
    query = (
        select(Message.model, func.count(), unpriced, *sums)
        .join(Chat, Chat.id == Message.chat_id)
        .where(Chat.owner == owner, or_(Message.runtime_ms.is_not(None), _is_counted()))
        .group_by(Message.model)
        .order_by(Message.model)
    )
    if since is not None:
        query = query.where(Message.created_at >= since)
    if until is not None:
        query = query.where(Message.created_at < until)
    by_model = {row[0] or "": _used(*map(int, row[1:])) for row in tx.execute(query)}
    return {
        "owner": owner,
        "since": since.isoformat() if since else None,
        "until": until.isoformat() if until else None,
        "usage": told(sum(by_model.values(), Used())),
        "models": {model: told(used) for model, used in by_model.items()},
    }


def _is_counted() -> Any:  # a clause of SQLAlchemy's
    return or_(*(column.is_not(None) for column in _TOKENS))


def _used(calls: int, unpriced: int, *sums: int) -> Used:
    names = (*(column.key for column in _TOKENS), "cost_micros", "runtime_ms")
    return Used(calls=calls, unpriced_calls=unpriced, **dict(zip(names, sums, strict=True)))
