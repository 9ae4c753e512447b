"""What a chat does with those below it while its turn runs: spawn one, send one a message.

Each locks the root of the tree first, and then checks that the caller's turn is still running: once
a tree is stopped, nobody can put a newly busy chat into it. A repeated request (its worker died,
and the call is run again) finds its key and changes nothing. A refusal is a `Rejected`, in words
for the model that asked. Stopping is `trees.py`; looking at chats below is `models/trees.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from sqlalchemy.orm import Session

from models import trees
from models.machine import keys
from models.machine.by_app import NewChat, create, send
from models.machine.trees import lock_root, supersede
from models.tables import Chat
from rejoinder.core.effects import Effects
from rejoinder.core.errors import Rejected
from rejoinder.core.messages import WhenBusy
from rejoinder.core.parts import Json, Part, Text, dump
from rejoinder.core.state import AT_REST, Status


@dataclass(frozen=True)
class Caller:
    """The chat that asks, and the turn in which it does; `key` is the same for every repetition."""

    chat_id: UUID
    turn_id: UUID
    key: str


@dataclass(frozen=True)
class Errand:
    """What a new child is told."""

    prompt: str
    instruction: Text
    """What its system prompt says beside its parent's."""
    title: str | None = None
    model: str | None = None


@dataclass(frozen=True)
class Limits:
    """How far a tree may grow."""

    depth: int
    """Chats below the root, one below the other."""
    at_once: int
    """Children of one chat that work at once."""
    total: int
    """Chats of a tree."""


def spawn(tx: Session, caller: Caller, errand: Errand, limits: Limits) -> Effects:
    """create: a child of the caller, with its owner, options and instructions."""
    parent = _running(tx, caller)
    request: Json = {"spawn": errand.prompt, "title": errand.title, "model": errand.model}
    (child, *_) = keys.once(
        tx, parent.owner, caller.key, request, lambda: _spawn(tx, parent, errand, limits)
    )
    return child


def _spawn(tx: Session, parent: Chat, errand: Errand, limits: Limits) -> Effects:
    if trees.depth_of(tx, parent.id, parent.parent_id) >= limits.depth:
        raise Rejected(f"Agents are {limits.depth} deep already", "do the work in this chat")
    if trees.size(tx, parent.root_id) >= limits.total:
        raise Rejected(
            f"This tree has {limits.total} chats already, and that is the most",
            "send one of your agents a message instead of starting another",
        )
    _room_for_one_more(tx, parent.id, limits)
    inherited = trees.instructions(tx, parent.id)
    return create(
        tx,
        NewChat(
            owner=parent.owner,
            content=(Text(errand.prompt),),
            system=(
                *(each for each in inherited if each != errand.instruction),
                errand.instruction,
            ),
            model=errand.model or parent.model,
            options=parent.options,
            parent_id=parent.id,
            title=errand.title,
        ),
    )


def message_agent(  # noqa: PLR0913  # who says what to whom, and how
    tx: Session,
    caller: Caller,
    chat_id: UUID,
    content: Sequence[Part],
    limits: Limits,
    *,
    interrupt: bool = False,
) -> tuple[Effects, ...]:
    """send: to a chat below the caller; queued if it is busy, or instead of what it does."""
    above = _running(tx, caller)
    if chat_id not in trees.below(tx, above.id, [chat_id]):
        raise not_below(chat_id)
    when_busy = WhenBusy.INTERRUPT if interrupt else WhenBusy.QUEUE

    def act() -> tuple[Effects, ...]:
        agent = tx.get_one(Chat, chat_id)
        if agent.status in AT_REST and agent.parent_id is not None:
            _room_for_one_more(tx, agent.parent_id, limits)
        say = partial(send, tx, chat_id, content, when_busy=when_busy)
        return supersede(tx, chat_id, say) if interrupt else (say(),)

    request: Json = {"send": dump(content), "chat": str(chat_id), "when_busy": when_busy}
    return keys.once(tx, above.owner, caller.key, request, act)


def not_below(*chat_ids: UUID) -> Rejected:
    """The refusal of chats that are not the caller's to talk to, whether they exist or not."""
    named = ", ".join(str(each) for each in chat_ids)
    return Rejected(
        f"No agent of yours has the id {named}",
        "use an id that spawn_agent or list_agents gave you",
    )


def _running(tx: Session, caller: Caller) -> Chat:
    """The caller's row, with its tree locked."""
    lock_root(tx, caller.chat_id)
    chat = tx.get(Chat, caller.chat_id, populate_existing=True)
    if chat is None or chat.turn_id != caller.turn_id or chat.status is not Status.RUNNING:
        raise Rejected("The turn that asks for this is to stop", "do nothing more in it")
    return chat


def _room_for_one_more(tx: Session, chat_id: UUID, limits: Limits) -> None:
    if trees.busy_children(tx, chat_id) >= limits.at_once:
        raise Rejected(
            f"{limits.at_once} agents of one chat are at work, and no more may be at once",
            "wait for one of them with wait_agent first",
        )
