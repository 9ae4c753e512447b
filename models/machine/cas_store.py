"""The lease holder's transitions, in one round trip where nothing came in between.

Whoever holds the lease has read the chat's row when it claimed it, and knows what it wrote since.
Every transition of anybody adds one to `snapshot_version`: while that and the lease are the same,
the row is the one that its holder knows, and need not be locked and read again. So the transition's
function runs on the known row, and all that it writes goes out as one statement
(`one_statement.py`) that begins with `UPDATE … WHERE snapshot_version = … AND lease_id = …`:
compare and set, instead of lock, check, write.

If that finds nothing (a message was queued, a stop was asked for, the lease is gone), or if the
function has to read what the holder does not know, nothing was written, and the same function runs
in a transaction, under the lock, as everybody's does. There is no second set of rules, only a
second way to write down what they say.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, cast
from uuid import UUID

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from models import steps
from models.engine import transaction
from models.machine import one_statement
from models.machine.one_statement import ANSWER, CALLS
from models.machine.rows import Row
from models.machine.store import Store
from models.tables import Chat
from models.types import as_json, escaped
from rejoinder.core.effects import Effects, Fence, TurnEnd
from rejoinder.core.errors import Refused
from rejoinder.core.messages import NewMessage

Transition = Callable[..., Effects]
Took = Callable[[Effects], steps.Took | None]


class NeedsLockError(Exception):
    """The lease holder does not know enough."""


@dataclass(frozen=True)
class KnownRow:
    """What the lease holder knows of the chat's rows."""

    chat: Mapping[str, Any]
    """The chat's row, column by column."""
    now: datetime
    """The database's clock, when that was read ..."""
    read_at: float
    """... and this process' own, a little later: so what it tells is never ahead of Postgres."""
    message_ids: Sequence[int]
    """Places at the end of history, taken under the lease."""
    calls: Sequence[Mapping[str, Any]] | None
    """The calls that history waits for, in order; None: they have to be read."""


class CasStore:
    """What one transition writes, on top of what the lease holder knows."""

    can_stay = True

    def __init__(self, known: KnownRow) -> None:
        """Begin with nothing written."""
        self._known = known
        self._ids = iter(known.message_ids)
        self._chat = Row()
        self._calls = None if known.calls is None else [_row(call) for call in known.calls]
        self.messages: list[tuple[int, NewMessage]] = []
        """What was added to history."""
        self.parts: dict[str, Mapping[str, Any]] = {}
        """What is to be written, by the part of the statement that does it."""

    @property
    def session(self) -> Session:
        """Only the lock can answer."""
        raise NeedsLockError("session")

    def look(self, _: UUID, fence: Fence | None) -> tuple[dict[str, Any], datetime, bool]:
        """What is known. Postgres' clock was read with it; ours measures what has passed since."""
        if fence is None:
            raise NeedsLockError("fence")  # the holder's word is only as good as its lease
        passed = timedelta(seconds=time.monotonic() - self._known.read_at)
        return dict(self._known.chat), self._known.now + passed, bool(self._open())

    def open_calls(self, _: UUID) -> Sequence[Row]:
        """Those that the holder knows."""
        return self._open()

    def _open(self) -> Sequence[Row]:
        if self._calls is None:
            raise NeedsLockError("calls")
        return self._calls

    def note_calls(self, calls: Sequence[Mapping[str, Any]] | None) -> None:
        """Know these from now on."""
        self._calls = None if calls is None else [_row(call) for call in calls]

    def append(
        self,
        message: NewMessage,
        given: dict[str, Any],
        calls: Sequence[Mapping[str, object]],
        *,
        is_step: bool,
    ) -> tuple[int, datetime | None]:
        """Take one of the places at the end of history."""
        message_id = next(self._ids, None)
        if message_id is None:
            raise NeedsLockError("message_ids")
        self.messages.append((message_id, message))
        if is_step:
            self.add("turn_step")
        if calls:
            self.add("new_calls", **{name: [call[name] for call in calls] for name in CALLS})
        request_id = message.request_id and escaped(message.request_id)
        stored = {"id": message_id, "parts": as_json(given["parts"]), "request_id": request_id}
        self.add("message", **given | stored)
        return message_id, None

    def end_turn(self, turn_id: UUID, **values: Any) -> Sequence[UUID]:
        """Those that had joined it are known once it is written."""
        steps = 0 if self.parts.pop("turn_step", None) is None else 1
        values["error"] = values["error"] and as_json(values["error"])
        self.add("turn_end", id=turn_id, steps=steps, **values)
        return [turn_id]

    def stay(self) -> None:
        """Ask for what a claim tells."""
        self.add("stay")

    def flush(self, chat: Chat) -> None:
        """Write nothing: it is all written at once."""

    def end(self, chat: Chat) -> None:
        """Note what was changed of the chat and of the calls that the holder knew."""
        self._chat = cast("Row", chat)
        self.parts["chat"] = self._chat.changes()
        if "new_calls" in self.parts:
            return
        if values := [vars(call) for call in self._calls or () if call.changes()]:
            columns = {
                column: [stored(call[column]) for call in values]
                for column, stored in ANSWER.items()
            }
            self.add("answers", message_id=values[0]["message_id"], **columns)

    def add(self, part: str, **given: Any) -> None:
        """Have a part written; each at most once."""
        if part in self.parts:
            raise NeedsLockError(part)
        self.parts[part] = given

    def write(self, engine: Engine) -> one_statement.Written | None:
        """Write it all; None, and nothing written, if the row is not the known one."""
        known = self._known.chat
        return one_statement.execute(
            engine, known["id"], known["snapshot_version"], known["lease_id"], self.parts
        )

    def then(self, taken: tuple[datetime, int, int] | None = None) -> KnownRow:
        """What the holder knows afterwards; `taken` is what it was told with a new lease."""
        calls = None
        if self._calls is not None:
            calls = [vars(call) for call in self._calls if not vars(call)["settled"]]
        chat = vars(self._chat)["_stored"]
        if taken is None:
            return KnownRow(chat, self._known.now, self._known.read_at, [*self._ids], calls)
        now, *message_ids = taken
        return KnownRow(chat, now, time.monotonic(), message_ids, calls)


@dataclass(frozen=True)
class Done:
    """What became of a transition."""

    effects: Effects
    known: KnownRow | None = None
    """What the lease holder knows now, if it still is that."""
    messages: Sequence[tuple[int, NewMessage]] | None = None
    """What was added to history; None: who needs it has to read."""


def _nothing(_: Effects) -> None:
    """Not a step that ends."""


def perform(
    engine: Engine,
    known: KnownRow | None,
    transition: Transition,
    fence: Fence,
    *args: object,
    took: Took = _nothing,
    **options: object,
) -> Done:
    """Run one transition, on what the lease holder knows, or else under the lock.

    `took` tells what the step took, if it ends with this: written in the same transaction.
    """
    if known is not None:
        done = compare_and_set(
            engine, known, lambda store: transition(store, fence, *args, **options), took
        )
        if done is not None:
            return done
    with transaction(engine) as tx:
        effects = transition(tx, fence, *args, **options)
        if (line := took(effects)) is not None:
            steps.write(tx, fence.chat_id, line)
    return Done(effects)


def compare_and_set(
    engine: Engine, known: KnownRow, run: Callable[[Store], Effects], took: Took = _nothing
) -> Done | None:
    """Run a transition without the lock; None, and nothing written, if that cannot be."""
    store = CasStore(known)
    try:
        effects = run(store)
        if (line := took(effects)) is not None:
            store.add("step", **vars(line))
    except (NeedsLockError, Refused):
        return None  # a refusal may be about old news: the row itself decides
    written = store.write(engine) if effects.changed else None
    if written is None:
        return None
    if written.over:
        effects = replace(effects, ended=_all(effects.ended, written.over))
    then = store.then(written.taken) if effects.fence else None
    return Done(effects, then, store.messages)


def _all(ended: tuple[TurnEnd, ...], over: Sequence[UUID]) -> tuple[TurnEnd, ...]:
    """The turn that ended, and those that had joined it."""
    known = {end.turn_id for end in ended}
    return (*ended, *(replace(ended[0], turn_id=each) for each in over if each not in known))


def _row(values: Mapping[str, Any]) -> Row:
    row = Row()
    row.read({name: value for name, value in values.items() if name != "_stored"})
    return row
