"""What concerns a chat and those below it: archive, unarchive, stop, spend. All or nothing.

The root is locked first, then its descendants; a child is born under the root's lock too. So
nobody can slip a new or newly busy chat into a tree that is being archived or stopped, and two
operations on one tree never wait for each other in a circle.
"""

from collections.abc import Callable
from uuid import UUID

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from models.machine import queue
from models.machine.by_app import interrupt
from models.machine.change import Change, begin
from models.tables import Chat
from rejoinder.core.effects import Effects, Event, EventKind
from rejoinder.core.errors import Rejected
from rejoinder.core.messages import ActionKind, Budget
from rejoinder.core.state import TABLE, Status, Transition, targets


def archive(tx: Session, chat_id: UUID) -> tuple[Effects, ...]:
    """archive: the whole tree, if all of it is at rest; no change if it is archived already."""
    return _set_archived(tx, chat_id, Transition.ARCHIVE, archived=True)


def unarchive(tx: Session, chat_id: UUID) -> tuple[Effects, ...]:
    """unarchive: the whole tree; no change if it is not archived."""
    return _set_archived(tx, chat_id, Transition.UNARCHIVE, archived=False)


def interrupt_tree(
    tx: Session, chat_id: UUID, *, turn_id: UUID | None = None
) -> tuple[Effects, ...]:
    """interrupt: the chat, and every chat below it that is busy. The chat's own effects first."""
    lock_root(tx, chat_id)
    own = interrupt(tx, chat_id, turn_id=turn_id)
    if turn_id is not None and not own.changed:
        return (own,)  # that turn is over: those below work for another one
    return (own, *_stop_below(tx, chat_id))


def supersede(tx: Session, chat_id: UUID, act: Callable[[], Effects]) -> tuple[Effects, ...]:
    """A transition that may stop the chat's turn for another one: then those below stop, too.

    `act` is the transition of the chat itself: send (interrupt), edit, promote_queued. Its effects
    come first. Chats below that work while it is at rest go on, unless their errand is edited away.
    """
    lock_root(tx, chat_id)
    own = act()
    stopped = own.ended or own.status is Status.INTERRUPTING
    edited = any(event.kind is EventKind.HISTORY_RESET for event in own.events)
    if own.changed and (stopped or edited):
        return (own, *_stop_below(tx, chat_id))
    return (own,)


def lock_root(tx: Session, chat_id: UUID) -> None:
    """Lock the root of a chat's tree, which may be the chat itself: always before any other."""
    root_id = select(Chat.root_id).where(Chat.id == chat_id).scalar_subquery()
    tx.execute(select(Chat.id).where(Chat.id == root_id).with_for_update(key_share=True))


def _stop_below(tx: Session, chat_id: UUID) -> tuple[Effects, ...]:
    below = tx.scalars(_BELOW, {"top": chat_id}).all()
    return tuple(interrupt(tx, child_id) for child_id in below)


def set_budget(tx: Session, chat_id: UUID, budget: Budget) -> tuple[Effects, ...]:
    """set_budget: what the tree of this root may use; chats that wait for more of it go on."""
    change = begin(tx, chat_id, Transition.SET_BUDGET)
    chat = change.chat
    if chat.parent_id is not None:
        raise Rejected(
            f"Chat {chat_id} is part of the tree of chat {chat.root_id}",
            "set the budget of that one: it is the tree's",
        )
    chat.budget_tokens, chat.budget_micros = budget.tokens, budget.micros
    change.events.append(
        Event(EventKind.BUDGET, {"tokens": budget.tokens, "cost_micros": budget.micros})
    )
    below = tx.scalars(_PARKED_FOR_BUDGET, {"root": chat_id}).all()
    return (
        _with_more(change),
        *(_with_more(begin(tx, child_id, Transition.SET_BUDGET)) for child_id in below),
    )


def _with_more(change: Change) -> Effects:
    """Let a chat look again whether there is enough; if not, it parks again."""
    if change.before is Status.REQUIRES_ACTION and change.chat.action is ActionKind.BUDGET:
        queue.go_on(change)
    return change.effects()


_PARKED_FOR_BUDGET = text("""
SELECT c.id FROM rejoinder.chats AS c
 WHERE c.root_id = :root AND c.parent_id IS NOT NULL
   AND c.status = 'requires_action' AND c.action = 'budget'
 ORDER BY c.id
""")

_BELOW = text("""
WITH RECURSIVE below AS (
    SELECT c.id, c.status FROM rejoinder.chats AS c WHERE c.parent_id = :top
    UNION ALL
    SELECT c.id, c.status FROM below JOIN rejoinder.chats AS c ON c.parent_id = below.id
)
SELECT id FROM below WHERE status NOT IN ('waiting', 'error') ORDER BY id
""")


def _set_archived(
    tx: Session, chat_id: UUID, transition: Transition, *, archived: bool
) -> tuple[Effects, ...]:
    root = begin(tx, chat_id, transition)
    if root.chat.parent_id is not None:
        raise Rejected(
            f"Chat {chat_id} is part of the tree of chat {root.chat.root_id}",
            f"{transition} that one: trees are archived as a whole",
        )
    return tuple(_flag(change, archived=archived) for change in (root, *_descendants(tx, root)))


def _descendants(tx: Session, root: Change) -> list[Change]:
    rows = tx.execute(
        select(Chat, func.clock_timestamp())
        .where(Chat.root_id == root.chat.id, Chat.parent_id.is_not(None))
        .order_by(Chat.id)
        .with_for_update(of=Chat, key_share=True)
        .execution_options(populate_existing=True)
    ).all()
    for chat, _ in rows:
        if not targets(root.transition, chat.status, queued=chat.queue_length > 0):
            raise Rejected(
                f"Cannot {root.transition} the tree: chat {chat.id} in it is {chat.status}",
                TABLE[root.transition].otherwise,
            )
    return [Change(tx, chat, now, root.transition) for chat, now in rows]


def _flag(change: Change, *, archived: bool) -> Effects:
    if change.chat.archived is archived:
        return change.nothing()
    change.chat.archived = archived
    return change.effects()
