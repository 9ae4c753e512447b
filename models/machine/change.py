"""One chat, being changed by one transition.

Every transition opens a `Change` (lock the row, check the table, check the fence), writes through
it, and ends with `effects()` (check the table again, bump the versions, write the row once). The
columns that belong to a status are set in one place, `to`, so that no transition can forget one.
Rows are read and written by its `Store`: under the lock, or by compare-and-set (`store.py`).
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, cast
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.orm import Session
from uuid_utils.compat import uuid7

from models.base import table_of
from models.machine.rows import Row
from models.machine.store import AnyStore, store_of
from models.tables import Chat, QueuedMessage
from rejoinder.core.effects import (
    Cause,
    Dispatch,
    Effects,
    Event,
    EventKind,
    Fence,
    Hint,
    Send,
    TurnEnd,
)
from rejoinder.core.errors import Refused, Rejected, Stale, StopRequested
from rejoinder.core.limits import DUE_GAP, redispatch_gap
from rejoinder.core.messages import ActionKind, Failure
from rejoinder.core.parts import Json
from rejoinder.core.state import AT_REST, LEASED, PARKED, TABLE, Actor, Status, Transition, targets

_CHATS = table_of(Chat)
_NOW = select(func.clock_timestamp())
_BORN = _CHATS.insert().returning(*_CHATS.c)
_BLANK: Mapping[str, Any] = dict.fromkeys(column.name for column in _CHATS.columns)


class Change:
    """The chat's row, and what the transition has done to it so far."""

    def __init__(
        self,
        store: AnyStore,
        chat: Chat,
        now: datetime,
        transition: Transition,
        *,
        has_open_calls: bool = False,
    ) -> None:
        """Wrap a row that the store has locked or inserted, or that the lease holder knows."""
        self.store = store_of(store)
        self.chat = chat
        self.now = now
        self.transition = transition
        self.has_open_calls = has_open_calls
        """Whether history waits for calls; who holds the lease can rely on it from the start.

        It was read before the wait for the lock, if there was one: only a lease holder's calls
        cannot have changed meanwhile. `calls.unsettled` reads it anew for everybody.
        """
        self.before = None if transition is Transition.CREATE else chat.status
        self.seen_before = {} if self.before is None else _seen(chat)
        self.queued_before = chat.queue_length > 0
        self.version = chat.snapshot_version + (self.before is not None)
        self.history_changed = False
        self.queue_changed = False
        self.stays = False
        self.message_ids: list[int] = []
        self.events: list[Event] = []
        self.hints: list[Hint] = []
        self.ended: list[TurnEnd] = []
        self.sends: list[Send] = []
        self.abandoned: list[str] = []
        self.queued: list[Json] = []
        """Messages that were put into the queue."""

    @property
    def unchanged(self) -> bool:
        """Whether the table accepts this transition here as a no-op."""
        return TABLE[self.transition].moves[self.before].unchanged

    def to(
        self,
        status: Status,
        *,
        run_after: datetime | None = None,
        deadline: datetime | None = None,
        action: ActionKind | None = None,
        failure: Failure | None = None,
    ) -> None:
        """Set the status and every column that belongs to it."""
        chat = self.chat
        chat.status = status
        chat.run_after = run_after
        chat.deadline = deadline
        chat.action = action
        chat.partial = None
        chat.last_error = failure.to_json() if failure else None
        if status in AT_REST | PARKED:
            chat.claims_since_progress = 0
        if status not in LEASED:
            chat.lease_id = chat.worker_id = None
        if status in AT_REST:
            chat.turn_id = chat.step_id = None
            chat.attempt, chat.retry_state = 0, None
        if status is Status.PENDING:
            chat.step_id = uuid7()  # known before anybody rings: it can be revoked from now on
            chat.dispatches = 1
            chat.redispatch_at = run_after + DUE_GAP if run_after else self.now + redispatch_gap(1)
        else:
            chat.dispatches = 0
            chat.redispatch_at = None

    def stay(self) -> None:
        """Have the same worker take the next step, under a lease of its own: commit and claim."""
        self.chat.lease_id = uuid7()
        self.chat.claims_since_progress += 1
        self.chat.step_id = uuid7()
        self.stays = True
        self.store.stay()

    def touch_history(self) -> None:
        """Note that history is not what it was: readers reload, attempts count from 0 again."""
        self.history_changed = True
        self.chat.attempt = 0
        self.chat.retry_state = None
        self.chat.claims_since_progress = 0
        if self.chat.partial is not None:
            self.chat.partial = None
            self.events.append(Event(EventKind.PREVIEW_RESET, {}))

    def tell_owner(self, cause: Cause) -> None:
        """Have the process that holds the lease cancel its step, once this is committed."""
        chat = self.chat
        if chat.worker_id and chat.lease_id:
            self.hints.append(Hint(chat.worker_id, chat.id, chat.lease_id, cause))

    def nothing(self) -> Effects:
        """End without having written anything."""
        return self._effects(changed=False)

    def effects(self, *, turn_id: UUID | None = None, queued_id: int | None = None) -> Effects:
        """Write the row, and say what is to be published after the commit."""
        chat = self.chat
        allowed = targets(self.transition, self.before, queued=self.queued_before)
        if chat.status not in allowed:
            raise AssertionError(
                f"{self.transition} led from {self.before} to {chat.status}, not to {allowed}"
            )
        chat.snapshot_version = self.version
        chat.updated_at = self.now
        if self.history_changed:
            chat.history_version = self.version
        if self.queue_changed:
            chat.queue_version = self.version
            self.events.append(self._queue())
        if changed := _differs(_seen(chat), self.seen_before):
            told = _told({"status": chat.status, "turn_id": chat.turn_id, **changed})
            if self.before is None:
                told |= {"title": chat.title, "labels": dict(chat.labels)}
            self.events.append(Event(EventKind.STATUS, told))
        if chat.last_error is not None and self.before is not Status.ERROR:
            self.events.append(Event(EventKind.ERROR, chat.last_error))
        self.store.end(chat)
        return self._effects(changed=True, turn_id=turn_id, queued_id=queued_id)

    def flush(self) -> None:
        """Have what was changed so far written before it is read again."""
        self.store.flush(self.chat)

    def _effects(
        self, *, changed: bool, turn_id: UUID | None = None, queued_id: int | None = None
    ) -> Effects:
        chat = self.chat
        runnable = changed and (
            self.stays or (chat.status is Status.PENDING and self._dispatches_anew())
        )
        rested = changed and chat.status in AT_REST and self.before not in AT_REST
        return Effects(
            chat_id=chat.id,
            status=chat.status,
            snapshot_version=chat.snapshot_version,
            history_version=chat.history_version,
            queue_version=chat.queue_version,
            changed=changed,
            turn_id=turn_id or chat.turn_id,
            message_ids=tuple(self.message_ids),
            queued_id=queued_id,
            fence=Fence(chat.id, chat.lease_id, chat.history_version) if chat.lease_id else None,
            dispatch=Dispatch(chat.id, chat.turn_id, chat.step_id, self._delay())
            if runnable and chat.turn_id and chat.step_id
            else None,
            events=tuple(self.events),
            hints=tuple(self.hints),
            ended=tuple(self.ended),
            sends=tuple(self.sends),
            abandoned=tuple(self.abandoned),
            wake=chat.parent_id if rested else None,
        )

    def _queue(self) -> Event:
        """The queue as it is now, by ids, and what came into it: readers keep the rest."""
        waiting = (
            select(QueuedMessage.id)
            .where(QueuedMessage.chat_id == self.chat.id)
            .order_by(QueuedMessage.position)
        )
        ids = list(self.store.session.scalars(waiting)) if self.chat.queue_length else []
        length = self.chat.queue_length
        return Event(EventKind.QUEUE, {"length": length, "ids": ids, "added": self.queued})

    def _delay(self) -> float:
        run_after = self.chat.run_after
        return (run_after - self.now).total_seconds() if run_after else 0.0

    def _dispatches_anew(self) -> bool:
        # A pending chat that only gained a queued message already has its message on the way.
        return self.before is not Status.PENDING or self.history_changed


def born(tx: Session, given: Mapping[str, Any]) -> Change:
    """A chat that there was not: its row is inserted, with these values, and runnable."""
    row = Row()
    row.read({**_BLANK, **given})
    now = tx.execute(_NOW).scalar_one()
    change = Change(tx, cast("Chat", row), now, Transition.CREATE)
    change.to(Status.PENDING)
    chat = change.chat
    runnable = {
        "status": chat.status,
        "step_id": chat.step_id,
        "dispatches": chat.dispatches,
        "redispatch_at": chat.redispatch_at,
    }
    row.read(dict(tx.execute(_BORN, {**given, **runnable}).mappings().one()))
    return change


def begin(
    store: AnyStore, chat_id: UUID, transition: Transition, *, fence: Fence | None = None
) -> Change:
    """Lock the chat, or take it as its lease holder knows it; refuse if this may not happen now."""
    store = store_of(store)
    found = store.look(chat_id, fence)
    if found is None:
        raise _refusal(transition, f"There is no chat {chat_id}", "check its id")
    values, now, has_open_calls = found
    row = Row()
    row.read(values)
    chat = cast("Chat", row)
    if fence is not None and (chat.lease_id, chat.history_version) != (
        fence.lease_id,
        fence.history_version,
    ):
        raise Stale(
            f"The lease on chat {chat_id} is lost, or its history was changed",
            "leave, and write nothing",
        )
    rule = TABLE[transition]
    if chat.archived and not rule.on_archived:
        raise _refusal(transition, "The chat is archived", "unarchive it first")
    if targets(transition, chat.status, queued=chat.queue_length > 0):
        return Change(store, chat, now, transition, has_open_calls=has_open_calls)
    if fence is not None and chat.status is Status.INTERRUPTING:
        raise StopRequested(
            f"Stop was asked for in chat {chat_id}", "save what was produced with finish_interrupt"
        )
    state = f"{chat.status}, nothing queued" if not chat.queue_length else chat.status
    raise _refusal(transition, f"Cannot {transition} while the chat is {state}", rule.otherwise)


def _seen(chat: Chat) -> dict[str, Any]:
    """What readers see of the chat's state: a `status` event tells what has changed of it."""
    return {
        "status": chat.status,
        "turn_id": chat.turn_id,
        "archived": chat.archived,
        "model": chat.model,
        "action": chat.action,
        "deadline": chat.deadline,
        "run_after": chat.run_after,
        "attempt": chat.attempt,
        "retry_state": chat.retry_state,
        "last_error": chat.last_error,
    }


def _differs(now: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in now.items() if before.get(name, ...) != value}


def _told(changed: dict[str, Any]) -> dict[str, Json]:
    """The same, as an event can hold it."""
    return {name: _plain(value) for name, value in changed.items()}


def _plain(value: Any) -> Json:
    if isinstance(value, UUID):
        return str(value)
    return value.isoformat() if isinstance(value, datetime) else value


def after(now: datetime, seconds: float) -> datetime:
    """Add seconds to a moment of the database's clock."""
    return now + timedelta(seconds=seconds)


def _refusal(transition: Transition, reason: str, advice: str) -> Refused:
    ours = {Actor.APP, Actor.OPERATOR, Actor.CALLBACK} & set(TABLE[transition].by)
    return Rejected(reason, advice) if ours else Stale(reason, advice)
