"""What a step needs to know of its chat, read in one short transaction.

Read after the claim: the rows cannot change under the lease except by an edit or a stop, which the
fence and the cancellation deal with.
"""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from models import trees
from models.history import prompt_history
from models.tables import Chat, Message, ToolCallRow, Turn
from rejoinder.core import parts
from rejoinder.core.decide import Call, Entry, Snapshot
from rejoinder.core.messages import Budget, TitleSource, Used
from rejoinder.core.options import ChatOptions


@dataclass(frozen=True)
class Loaded:
    """A chat as a step sees it."""

    chat_id: UUID
    turn_id: UUID
    owner: str
    model: str
    options: ChatOptions
    depth: int
    """How many chats are above it."""
    title_source: TitleSource
    budget: Budget
    used: Used
    """What its tree has used; zero where there is no budget."""
    snapshot: Snapshot


def load(tx: Session, chat_id: UUID, turn_id: UUID) -> Loaded:
    """Read the chat, its history since the newest boundary, and its open calls."""
    chat, now = tx.execute(select(Chat, func.statement_timestamp()).where(Chat.id == chat_id)).one()
    turn = tx.get_one(Turn, turn_id)
    calls = tx.scalars(
        select(ToolCallRow)
        .where(ToolCallRow.chat_id == chat_id, ~ToolCallRow.settled)
        .order_by(ToolCallRow.id)
    )
    budget = trees.budget_of(tx, chat)
    return Loaded(
        chat_id=chat_id,
        turn_id=turn_id,
        owner=chat.owner,
        model=chat.model,
        options=ChatOptions.load(chat.options),
        depth=trees.depth_of(tx, chat),
        title_source=chat.title_source,
        budget=budget,
        used=trees.used(tx, chat.root_id) if budget != Budget() else Used(),
        snapshot=Snapshot(
            turn_kind=turn.kind,
            steps=turn.steps,
            history=tuple(entry(message) for message in prompt_history(tx, chat_id)),
            calls=tuple(_call(row, now) for row in calls),
            attempt=chat.attempt,
        ),
    )


def entry(message: Message) -> Entry:
    """A row of history as a value."""
    used = (message.input_tokens, message.cache_read_tokens, message.cache_write_tokens)
    return Entry(
        id=message.id,
        role=message.role,
        parts=parts.load(message.parts),
        model=message.model,
        stop=message.stop_reason,
        context_tokens=sum(n or 0 for n in used) if any(used) else None,
        compressed=message.compressed,
    )


def _call(row: ToolCallRow, now: datetime) -> Call:
    return Call(
        row.call_id,
        row.name,
        row.arguments,
        row.kind,
        row.state,
        row.external_id,
        row.approval,
        tuple(row.waits_for or ()),
        overdue=row.deadline is not None and row.deadline <= now,
    )
