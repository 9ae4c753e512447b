"""Reading: what a step or a reader needs to know, in as few queries as possible.

Nothing here locks or writes. `prompt_history` is what the model is shown.
"""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Select, func, literal, select, union_all
from sqlalchemy.orm import Session, aliased

from models.tables import Message
from rejoinder.core.messages import Role, Visibility


def prompt_query(chat_id: UUID) -> Select[Message]:
    """Everything since the newest compaction boundary, and the system messages before it.

    One statement, three index scans (messages_boundary for the boundary, messages_history and
    messages_system for the rows), merged in order of id: its cost is what it returns, however long
    the chat is.
    """
    boundary = (
        select(func.coalesce(func.max(Message.id), literal(0)))
        .where(
            Message.chat_id == chat_id,
            Message.compressed.is_(True),
            Message.visibility == Visibility.MODEL,
            Message.deleted.is_(False),
        )
        .scalar_subquery()
    )
    visible = (
        Message.chat_id == chat_id,
        Message.deleted.is_(False),
        Message.visibility != Visibility.USER,
    )
    system = select(Message).where(
        *visible,
        Message.role == Role.SYSTEM,
        Message.compressed.is_(False),
        Message.id < boundary,
    )
    since = select(Message).where(*visible, Message.id >= boundary)
    both = union_all(system, since).subquery()
    row = aliased(Message, both)
    return select(row).order_by(row.id)


def prompt_history(tx: Session, chat_id: UUID) -> Sequence[Message]:
    """The messages that the model is shown, in order."""
    return tx.scalars(prompt_query(chat_id)).all()
