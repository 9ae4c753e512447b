"""What apps ask about chats: one chat, many chats, messages. Values ready for JSON; no locks."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from sqlalchemy import Select, and_, or_, select
from sqlalchemy.orm import Session

from models import accounts, trees
from models.machine.calls import Calls, asked_for, asking, looked_at
from models.machine.history import cost_of
from models.tables import Chat, Message, QueuedMessage, StepRow, ToolCallRow
from rejoinder.core.errors import Rejected
from rejoinder.core.messages import ANSWERED, ActionKind, Visibility
from rejoinder.core.state import Status

T = TypeVar("T")

MOST = 200
"""Rows of one page, at most."""


def get_chat(tx: Session, chat_id: UUID) -> dict[str, Any]:
    """One chat with its queue, its children and, if it waits for answers, the calls in question."""
    chat = _known(tx, chat_id)
    queue = tx.scalars(
        select(QueuedMessage)
        .where(QueuedMessage.chat_id == chat_id)
        .order_by(QueuedMessage.position)
    )
    calls = looked_at(tx, chat_id)
    return {
        **_chat(chat),
        **_accounts(tx, chat),
        "children": _children(tx, chat_id),
        "queue": [_queued(message) for message in queue],
        "asked": _asked(chat, calls),
        "open_calls": [_open_call(call) for call in calls if call.state not in ANSWERED],
    }


def _children(tx: Session, chat_id: UUID) -> list[dict[str, Any]]:
    rows = tx.execute(
        select(Chat.id, Chat.title, Chat.status)
        .where(Chat.parent_id == chat_id)
        .order_by(Chat.id)
        .limit(MOST)
    )
    return [{"id": str(c.id), "title": c.title, "status": str(c.status)} for c in rows]


def _open_call(call: ToolCallRow) -> dict[str, Any]:
    return {
        "call_id": call.call_id,
        "name": call.name,
        "arguments": call.arguments,
        "kind": str(call.kind),
        "state": str(call.state),
        "approval": str(call.approval) if call.approval else None,
        "deadline": _moment(call.deadline),
    }


def _moment(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment else None


def list_chats(  # noqa: PLR0913  # filters
    tx: Session,
    owner: str,
    *,
    status: Status | None = None,
    labels: Mapping[str, str] | None = None,
    archived: bool | None = False,
    parent_id: UUID | None = None,
    root_id: UUID | None = None,
    roots: bool = False,
    title: str | None = None,
    before: UUID | None = None,
    limit: int = 50,
) -> dict[str, Any]:
    """An owner's chats, newest first; `next` goes into `before` for the next page.

    Index: chats_owner, in its own order; with `parent_id` or `root_id`, chats_children and
    chats_tree.
    """
    query = select(Chat).where(Chat.owner == owner)
    if archived is not None:
        query = query.where(Chat.archived.is_(archived))
    if status is not None:
        query = query.where(Chat.status == status)
    if labels:
        query = query.where(Chat.labels.contains(dict(labels)))
    if parent_id is not None:
        query = query.where(Chat.parent_id == parent_id)
    if root_id is not None:
        in_tree = and_(Chat.root_id == root_id, Chat.parent_id.is_not(None))
        query = query.where(or_(Chat.id == root_id, in_tree))
    if roots:
        query = query.where(Chat.parent_id.is_(None))
    if title:
        query = query.where(Chat.title.icontains(title, autoescape=True))
    if before is not None:
        query = query.where(Chat.id < before)
    page, last = _page(tx, query.order_by(Chat.id.desc()), limit)
    return {"chats": [_chat(chat) for chat in page], "next": str(last.id) if last else None}


def get_messages(  # noqa: PLR0913  # from where, to where, which way
    tx: Session,
    chat_id: UUID,
    *,
    after: int = 0,
    before: int | None = None,
    newest_first: bool = False,
    limit: int = 100,
) -> dict[str, Any]:
    """A page of a chat's messages that people see, between two cursors (neither included).

    Oldest first, `next` goes into `after`; newest first, it goes into `before`. Index:
    messages_pkey, in its own order.
    """
    _known(tx, chat_id)
    seen = select(Message).where(
        Message.chat_id == chat_id,
        Message.id > after,
        ~Message.deleted,
        Message.visibility != Visibility.MODEL,
    )
    if before is not None:
        seen = seen.where(Message.id < before)
    order = Message.id.desc() if newest_first else Message.id
    page, last = _page(tx, seen.order_by(order), limit)
    return {"messages": [_message(each) for each in page], "next": last.id if last else None}


def get_steps(
    tx: Session, chat_id: UUID, *, before: int | None = None, limit: int = 100
) -> dict[str, Any]:
    """What a chat's steps took, newest first; `next` goes into `before`. Index: steps_pkey."""
    _known(tx, chat_id)
    query = select(StepRow).where(StepRow.chat_id == chat_id)
    if before is not None:
        query = query.where(StepRow.id < before)
    page, last = _page(tx, query.order_by(StepRow.id.desc()), limit)
    return {"steps": [_step(each) for each in page], "next": last.id if last else None}


def _known(tx: Session, chat_id: UUID) -> Chat:
    chat = tx.get(Chat, chat_id)
    if chat is None:
        raise Rejected(f"There is no chat {chat_id}", "check its id")
    return chat


def _page(tx: Session, query: Select[T], limit: int) -> tuple[Sequence[T], T | None]:
    """The rows of a page; and the last of them, if others follow."""
    size = min(limit, MOST)
    rows = tx.scalars(query.limit(size + 1)).all()
    return rows[:size], rows[size - 1] if len(rows) > size else None


def _queued(message: QueuedMessage) -> dict[str, Any]:
    return {
        "id": message.id,
        "turn_id": str(message.turn_id),
        "parts": message.parts,
        "model": message.model,
        "steer": message.steer,
        "created_at": message.created_at.isoformat(),
    }


def _asked(chat: Chat, calls: Calls) -> dict[str, Any] | None:
    """What somebody outside has to do, as the `action_required` event says it."""
    if chat.status is not Status.REQUIRES_ACTION:
        return None
    if chat.action is ActionKind.BUDGET:
        return {"kind": str(chat.action)}
    return {"kind": str(chat.action), "calls": [asked_for(call) for call in asking(calls)]}


def _chat(chat: Chat) -> dict[str, Any]:
    return {
        "id": str(chat.id),
        "owner": chat.owner,
        "parent_id": str(chat.parent_id) if chat.parent_id else None,
        "root_id": str(chat.root_id),
        "labels": chat.labels,
        "title": chat.title,
        "title_source": str(chat.title_source),
        "model": chat.model,
        "status": str(chat.status),
        "action": str(chat.action) if chat.action else None,
        "archived": chat.archived,
        "turn_id": str(chat.turn_id) if chat.turn_id else None,
        "step_id": str(chat.step_id) if chat.step_id else None,
        "queue_length": chat.queue_length,
        "last_error": chat.last_error,
        "retry_state": chat.retry_state,
        "attempt": chat.attempt,
        "run_after": _moment(chat.run_after),
        "deadline": _moment(chat.deadline),
        "version": chat.snapshot_version,
        "created_at": chat.created_at.isoformat(),
        "updated_at": chat.updated_at.isoformat(),
    }


def _accounts(tx: Session, chat: Chat) -> dict[str, Any]:
    """What the chat has used, what its whole tree has, and what that may use."""
    return {
        "usage": accounts.told(accounts.used_by(chat)),
        "tree_usage": accounts.told(trees.used(tx, chat.root_id)),
        "budget": accounts.told_budget(trees.budget_of(tx, chat)),
    }


def _message(message: Message) -> dict[str, Any]:
    return {
        "id": message.id,
        "turn_id": str(message.turn_id) if message.turn_id else None,
        "role": str(message.role),
        "parts": message.parts,
        "model": message.model,
        "usage": cost_of(message),
        "created_at": message.created_at.isoformat(),
    }


def _step(row: StepRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "turn_id": str(row.turn_id) if row.turn_id else None,
        "task_id": str(row.task_id) if row.task_id else None,
        "worker": row.worker,
        "attempt": row.attempt,
        "outcome": row.outcome,
        "began_at": row.began_at.isoformat(),
        "ended_at": row.ended_at.isoformat(),
        "claim_ms": row.claim_ms,
        "load_ms": row.load_ms,
        "model_ms": row.model_ms,
        "tools_ms": row.tools_ms,
        "write_ms": row.write_ms,
        "input_tokens": row.input_tokens,
        "output_tokens": row.output_tokens,
    }
