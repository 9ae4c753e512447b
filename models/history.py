"""Reading: what a step or a reader needs to know, in as few queries as possible.

Nothing here locks or writes. `prompt_history` is what the model is shown.
"""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import CompoundSelect, func, literal, select, union_all
from sqlalchemy.orm import Session

from models.tables import Message
from rejoinder.core.messages import Role, Visibility


def prompt_query(chat_id: UUID) -> CompoundSelect[Message]:
    """Everything since the newest compaction boundary, and the system messages before it.

    One statement, three index scans: messages_boundary for the boundary, messages_system and
    messages_pkey for the rows. Its cost is what it returns, however long the chat is.
    """
    boundary = (
        select(func.coalesce(func.max(Message.id), literal(0)))
        .where(
            Message.chat_id == chat_id,
            Message.compressed,
            Message.visibility == Visibility.MODEL,
            ~Message.deleted,
        )
        .scalar_subquery()
    )
    visible = (
        Message.chat_id == chat_id,
        ~Message.deleted,
        Message.visibility != Visibility.USER,
    )
    system = select(Message).where(
        *visible,
        Message.role == Role.SYSTEM,
        ~Message.compressed,
        Message.id < boundary,
    )
    since = select(Message).where(*visible, Message.id >= boundary)
    return union_all(system, since)


def prompt_history(tx: Session, chat_id: UUID) -> Sequence[Message]:
    """The messages that the model is shown, in order."""
    rows = tx.scalars(select(Message).from_statement(prompt_query(chat_id)))
    return sorted(rows, key=lambda message: message.id)  # they come in order, or nearly
