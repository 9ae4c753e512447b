"""What apps ask about chats: one chat, many chats, messages. Values ready for JSON; no locks."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from models.tables import Chat, Message, QueuedMessage, ToolCallRow
from rejoinder.core.errors import Rejected
from rejoinder.core.messages import ANSWERED, Visibility
from rejoinder.core.state import Status

MOST = 200
"""Rows of one page, at most."""


def get_chat(tx: Session, chat_id: UUID) -> dict[str, Any]:
    """One chat with its queue, its children and, if it waits for answers, the calls in question."""
    chat = tx.get(Chat, chat_id)
    if chat is None:
        raise Rejected(f"There is no chat {chat_id}", "check its id")
    queue = tx.scalars(
        select(QueuedMessage)
        .where(QueuedMessage.chat_id == chat_id)
        .order_by(QueuedMessage.position)
    )
    calls = tx.scalars(
        select(ToolCallRow)
        .where(ToolCallRow.chat_id == chat_id, ~ToolCallRow.settled)
        .order_by(ToolCallRow.id)
    )
    children = tx.execute(
        select(Chat.id, Chat.title, Chat.status)
        .where(Chat.parent_id == chat_id)
        .order_by(Chat.id)
        .limit(MOST)
    )
    return {
        **_chat(chat),
        "children": [{"id": str(c.id), "title": c.title, "status": c.status} for c in children],
        "queue": [{"id": q.id, "turn_id": str(q.turn_id), "parts": q.parts} for q in queue],
        "open_calls": [
            {"call_id": c.call_id, "name": c.name, "arguments": c.arguments, "kind": c.kind}
            for c in calls
            if c.state not in ANSWERED
        ],
    }


def list_chats(  # noqa: PLR0913  # filters
    tx: Session,
    owner: str,
    *,
    status: Status | None = None,
    labels: Mapping[str, str] | None = None,
    archived: bool = False,
    before: UUID | None = None,
    limit: int = 50,
) -> dict[str, Any]:
    """An owner's chats, newest first; `next` goes into `before` for the next page."""
    query = select(Chat).where(Chat.owner == owner, Chat.archived.is_(archived))
    if status is not None:
        query = query.where(Chat.status == status)
    if labels:
        query = query.where(Chat.labels.contains(dict(labels)))
    if before is not None:
        query = query.where(Chat.id < before)
    rows = tx.scalars(query.order_by(Chat.id.desc()).limit(min(limit, MOST) + 1)).all()
    page = rows[: min(limit, MOST)]
    return {
        "chats": [_chat(chat) for chat in page],
        "next": str(page[-1].id) if len(rows) > len(page) else None,
    }


def get_messages(tx: Session, chat_id: UUID, *, after: int = 0, limit: int = 100) -> dict[str, Any]:
    """A chat's messages that people see, oldest first; `next` goes into `after`."""
    if tx.get(Chat, chat_id) is None:
        raise Rejected(f"There is no chat {chat_id}", "check its id")
    rows = tx.scalars(
        select(Message)
        .where(
            Message.chat_id == chat_id,
            Message.id > after,
            ~Message.deleted,
            Message.visibility != Visibility.MODEL,
        )
        .order_by(Message.id)
        .limit(min(limit, MOST) + 1)
    ).all()
    page = rows[: min(limit, MOST)]
    return {
        "messages": [_message(message) for message in page],
        "next": page[-1].id if len(rows) > len(page) else None,
    }


def _chat(chat: Chat) -> dict[str, Any]:
    return {
        "id": str(chat.id),
        "owner": chat.owner,
        "parent_id": str(chat.parent_id) if chat.parent_id else None,
        "labels": chat.labels,
        "model": chat.model,
        "status": str(chat.status),
        "archived": chat.archived,
        "turn_id": str(chat.turn_id) if chat.turn_id else None,
        "step_id": str(chat.step_id) if chat.step_id else None,
        "queue_length": chat.queue_length,
        "last_error": chat.last_error,
        "retry_state": chat.retry_state,
        "attempt": chat.attempt,
        "run_after": chat.run_after.isoformat() if chat.run_after else None,
        "deadline": chat.deadline.isoformat() if chat.deadline else None,
        "version": chat.snapshot_version,
        "created_at": chat.created_at.isoformat(),
        "updated_at": chat.updated_at.isoformat(),
    }


def _message(message: Message) -> dict[str, Any]:
    usage = {
        name: getattr(message, name)
        for name in (
            "input_tokens",
            "output_tokens",
            "cache_read_tokens",
            "cache_write_tokens",
            "reasoning_tokens",
            "runtime_ms",
        )
        if getattr(message, name) is not None
    }
    return {
        "id": message.id,
        "turn_id": str(message.turn_id) if message.turn_id else None,
        "role": str(message.role),
        "parts": message.parts,
        "model": message.model,
        "usage": usage,
        "created_at": message.created_at.isoformat(),
    }
