"""The transitions that apps ask for: create, send, edit, stop, queue, answer, compact, retry.

Each locks the chat, checks the table, writes, and returns `Effects`; a refusal is a `Rejected` that
says what to do, and the caller's transaction is rolled back. Archiving is in `trees.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from sqlalchemy import update
from sqlalchemy.orm import Session
from uuid_utils.compat import uuid7

from models.machine import calls, history, partials, queue
from models.machine.by_worker import finish_stopped
from models.machine.change import Change, begin, born
from models.tables import Chat, Message
from models.types import plain
from rejoinder.core import parts
from rejoinder.core.effects import Cause, Effects, Event, EventKind
from rejoinder.core.errors import Rejected
from rejoinder.core.limits import MOST_TITLE
from rejoinder.core.messages import (
    Budget,
    NewMessage,
    Role,
    TitleSource,
    TurnKind,
    TurnState,
    Visibility,
    WhenBusy,
)
from rejoinder.core.parts import Json, Part
from rejoinder.core.state import AT_REST, Status, Transition
from rejoinder.core.titles import first_words

_SEND = {
    WhenBusy.QUEUE: Transition.SEND,
    WhenBusy.STEER: Transition.SEND_STEER,
    WhenBusy.INTERRUPT: Transition.SEND_INTERRUPT,
    WhenBusy.REJECT: Transition.SEND_REJECT,
}


@dataclass(frozen=True)
class NewChat:
    """What a chat begins with."""

    owner: str
    content: Sequence[Part]
    system: Sequence[Part] = ()
    model: str = ""
    options: Mapping[str, Json] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    parent_id: UUID | None = None
    title: str | None = None
    budget: Budget = field(default_factory=Budget)


def create(tx: Session, new: NewChat) -> Effects:
    """create: nothing → pending, with the first message in history and its turn open."""
    content = parts.user_content(new.content)
    if not plain("The owner", new.owner):
        raise Rejected("The owner is empty", "say whose chat this is")
    for name, value in new.labels.items():
        plain(f"The label {name!r}", name + value)
    chat_id, turn_id = uuid7(), uuid7()
    if new.parent_id is not None and new.budget != Budget():
        raise Rejected("A child chat has no budget of its own", "set the root's: it is the tree's")
    given: dict[str, Any] = {
        "id": chat_id,
        "owner": new.owner,
        "parent_id": new.parent_id,
        "root_id": _root_for_child(tx, new) or chat_id,
        "labels": dict(new.labels),
        "model": plain("The model", new.model),
        "options": dict(new.options),
        "title": new.title or first_words(parts.text_of(content)),
        "title_source": TitleSource.USER if new.title else TitleSource.WORDS,
        "budget_tokens": new.budget.tokens,
        "budget_micros": new.budget.micros,
        "turn_id": turn_id,
        "queue_length": 0,
        "snapshot_version": 1,
    }
    change = born(tx, given)
    if new.system:
        system = NewMessage(Role.SYSTEM, tuple(new.system), Visibility.MODEL)
        history.append(change, system, turn_id)
    history.say(change, NewMessage(Role.USER, content, model=new.model or None), turn_id)
    return change.effects()


def send(
    tx: Session,
    chat_id: UUID,
    content: Sequence[Part],
    *,
    when_busy: WhenBusy = WhenBusy.QUEUE,
    model: str | None = None,
) -> Effects:
    """send: at rest → pending; busy → queued, interrupted, or refused, as the caller chose."""
    content = parts.user_content(content)
    turn_id = uuid7()
    change = begin(tx, chat_id, _SEND[when_busy])
    message = NewMessage(Role.USER, content, model=model and plain("The model", model))
    queued_id = None
    if change.before in AT_REST:
        calls.close_all(change, calls.SUPERSEDED)
        if change.chat.queue_length:
            queue.promote_head(change)  # first, so that a full queue has room again
            queued_id, turn_id = queue.enqueue(change, message, turn_id)
        else:
            history.say(change, message, turn_id)
        change.to(Status.PENDING)
    else:
        steer = when_busy is WhenBusy.STEER
        queued_id, turn_id = queue.enqueue(change, message, turn_id, steer=steer)
        if when_busy is WhenBusy.INTERRUPT:
            _stop(change, calls.SUPERSEDED)
            if change.chat.turn_id == turn_id:
                queued_id = None  # it has left the queue already
        elif steer and change.before is Status.PENDING and queue.join(change):
            queued_id = None  # between two steps, and no call is open: the next one sees it
            change.to(Status.PENDING)
    return change.effects(turn_id=turn_id, queued_id=queued_id)


def edit(
    tx: Session, chat_id: UUID, message_id: int, content: Sequence[Part], model: str | None = None
) -> Effects:
    """edit: any → pending; the message is replaced, what came after it is gone, so is the queue."""
    content = parts.user_content(content)
    change = begin(tx, chat_id, Transition.EDIT)
    edited = tx.get(Message, (chat_id, message_id))
    if edited is None or edited.deleted:
        raise Rejected(
            f"Message {message_id} is not in the history of this chat",
            "it may have been edited away; read the messages again",
        )
    if edited.role is not Role.USER or edited.compressed:
        raise Rejected(
            f"Message {message_id} was not written by the user",
            "only the user's own messages can be edited",
        )
    change.tell_owner(Cause.LEASE_LOST)
    calls.forget(change, calls.unsettled(change), calls.SUPERSEDED)
    tx.execute(
        update(Message)
        .where(Message.chat_id == chat_id, Message.id >= message_id, ~Message.deleted)
        .values(deleted=True, revision=change.version)
        .execution_options(synchronize_session=False)
    )
    change.events.append(Event(EventKind.HISTORY_RESET, {"from": message_id}))
    queue.clear_queue(change)
    history.end_turn(change, TurnState.CANCELLED)
    model = (model and plain("The model", model)) or edited.model
    history.say(change, NewMessage(Role.USER, content, model=model))
    change.to(Status.PENDING)
    return change.effects()


def interrupt(tx: Session, chat_id: UUID, *, turn_id: UUID | None = None) -> Effects:
    """interrupt: running → interrupting; without an owner → waiting, or the queue's head begins.

    With `turn_id`, only that turn is stopped (or the one that it joined): a late stop does not hit
    the next message's turn.
    """
    change = begin(tx, chat_id, Transition.INTERRUPT)
    if change.unchanged or not history.is_open(change, turn_id):
        return change.nothing()
    _stop(change, calls.INTERRUPTED)
    return change.effects()


def promote_queued(tx: Session, chat_id: UUID, queued_id: int) -> Effects:
    """promote_queued: into history at once, or to the front and stop what runs."""
    change = begin(tx, chat_id, Transition.PROMOTE_QUEUED)
    message = queue.queued(change, queued_id)
    queue.move_to_front(change, message)
    if change.before is Status.ERROR:
        calls.close_all(change, calls.SUPERSEDED)
        queue.rest_or_next(change)
    else:
        _stop(change, calls.SUPERSEDED)
    return change.effects(turn_id=message.turn_id)


def delete_queued(tx: Session, chat_id: UUID, queued_id: int) -> Effects:
    """delete_queued: the message leaves the queue; its turn is cancelled."""
    change = begin(tx, chat_id, Transition.DELETE_QUEUED)
    queue.remove_queued(change, queue.queued(change, queued_id))
    return change.effects()


def request_compaction(tx: Session, chat_id: UUID) -> Effects:
    """request_compaction: waiting, error → pending, for a turn that only compacts."""
    change = begin(tx, chat_id, Transition.REQUEST_COMPACTION)
    calls.close_all(change, calls.SUPERSEDED)
    history.open_turn(change, TurnKind.COMPACTION)
    change.to(Status.PENDING)
    return change.effects()


def retry(tx: Session, chat_id: UUID) -> Effects:
    """retry: waiting, error → pending, over the same history; open calls are taken up again."""
    change = begin(tx, chat_id, Transition.RETRY)
    calls.drop_started(change, calls.unsettled(change))  # left behind by `give_up`
    history.open_turn(change, TurnKind.RETRY)
    change.to(Status.PENDING)
    return change.effects()


def set_title(
    tx: Session,
    chat_id: UUID,
    title: str,
    source: TitleSource,
    *,
    call: NewMessage | None = None,
) -> Effects:
    """set_title: a name for people. A model's only where nobody chose one; nothing else changes.

    `call` is what the model took to find it: it is counted in any case, and goes nowhere else.
    """
    change = begin(tx, chat_id, Transition.SET_TITLE)
    title = " ".join(title.split())
    if not title or len(title) > MOST_TITLE:
        raise Rejected(
            f"The title is empty or longer than {MOST_TITLE} characters", "give a short one"
        )
    chat = change.chat
    history.count(change, call)
    if source is TitleSource.MODEL and chat.title_source is not TitleSource.WORDS:
        return change.effects() if call else change.nothing()
    chat.title, chat.title_source = title, source
    change.events.append(Event(EventKind.TITLE, {"title": title, "source": source}))
    return change.effects()


def set_labels(tx: Session, chat_id: UUID, labels: Mapping[str, str | None]) -> Effects:
    """set_labels: these are set, or removed where they are None; the others stay."""
    change = begin(tx, chat_id, Transition.SET_LABELS)
    for name, value in labels.items():
        plain(f"The label {name!r}", name + (value or ""))
    merged = {**change.chat.labels, **labels}
    kept = {name: value for name, value in merged.items() if value is not None}
    if kept == change.chat.labels:
        return change.nothing()
    change.chat.labels = kept
    change.events.append(Event(EventKind.LABELS, {"labels": dict(kept)}))
    return change.effects()


def _stop(change: Change, reason: str) -> None:
    """Stop a busy chat: ask the owner to, or, where there is none, do it now."""
    if change.before is Status.INTERRUPTING:
        return
    if change.before is Status.RUNNING:
        change.to(Status.INTERRUPTING)
        change.tell_owner(Cause.INTERRUPT)
        return
    finish_stopped(change, partials.take(change), reason=reason)


def _root_for_child(tx: Session, new: NewChat) -> UUID | None:
    """The root of a child's tree. Locks the root, so that a tree cannot be archived meanwhile."""
    if new.parent_id is None:
        return None
    parent = tx.get(Chat, new.parent_id)
    root = parent and tx.get(
        Chat, parent.root_id, with_for_update={"key_share": True}, populate_existing=True
    )
    if parent is None or root is None or parent.owner != new.owner:
        raise Rejected(
            f"There is no chat {new.parent_id} of this owner",
            "give the id of an existing chat as the parent",
        )
    if root.archived:
        raise Rejected("The parent chat is archived", "unarchive it first")
    return root.id
