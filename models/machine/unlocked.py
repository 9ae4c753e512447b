"""A chat as its owner knows it, standing in for the locked row while a transition runs.

Whoever holds the lease has read the chat's row when it claimed it, and knows what it wrote since.
`Unlocked` takes the place of the transaction: it gives the transition what the owner knows, and
collects what it writes. What it does not know has to be read under the lock (`NeedsLockError`). How
that is written, and why it is safe: `owner.py`.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NoReturn

from models.machine.one_statement import ANSWER
from models.machine.rows import Row
from rejoinder.core.messages import NewMessage


class NeedsLockError(Exception):
    """The owner does not know enough."""


@dataclass(frozen=True)
class Known:
    """What the owner of a chat knows of its rows."""

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


class Unlocked:
    """What one transition writes, on top of what the owner knows."""

    def __init__(self, known: Known) -> None:
        """Begin with nothing."""
        self._known = known
        self._ids = iter(known.message_ids)
        self._chat = Row()
        self._calls: list[Row] | None = None
        if known.calls is not None:
            self._calls = [_row(call) for call in known.calls]
        self.messages: list[tuple[int, NewMessage]] = []
        """What was added to history."""
        self.parts: dict[str, Mapping[str, Any]] = {}
        """What is to be written, by the part of the statement that does it."""

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse what only a transaction can do."""
        raise NeedsLockError(name)

    def look(self) -> tuple[dict[str, Any], datetime, bool]:
        """The chat's row, Postgres' clock, and whether calls are open.

        The clock said the time when the row was read; ours only measures what has passed since.
        """
        passed = timedelta(seconds=time.monotonic() - self._known.read_at)
        return dict(self._known.chat), self._known.now + passed, bool(self.open_calls())

    def open_calls(self) -> Sequence[Row]:
        """The calls that history waits for, in order."""
        if self._calls is None:
            raise NeedsLockError("calls")
        return self._calls

    def open(self, calls: Sequence[Mapping[str, Any]] | None) -> None:
        """Note that these calls are open from now on; None: the owner cannot know."""
        self._calls = None if calls is None else [_row(call) for call in calls]

    def add(self, part: str, **given: Any) -> None:
        """Have a part written; each at most once."""
        if part in self.parts:
            raise NeedsLockError(part)
        self.parts[part] = given

    def append(self, message: NewMessage) -> int:
        """Take a place at the end of history for this message."""
        message_id = next(self._ids, None)
        if message_id is None:
            raise NeedsLockError("message_ids")
        self.messages.append((message_id, message))
        return message_id

    def end(self, chat: Row) -> None:
        """Note what was changed of the chat and of the calls that the owner knew."""
        self._chat = chat
        self.parts["chat"] = chat.changes()
        if "new_calls" in self.parts:
            return
        changed = [call for call in self._calls or () if call.changes()]
        if not changed:
            return
        values = [vars(call) for call in changed]
        self.add(
            "answers",
            message_id=values[0]["message_id"],
            **{
                column: [stored(call[column]) for call in values]
                for column, stored in ANSWER.items()
            },
        )

    def then(self, taken: tuple[datetime, int, int] | None = None) -> Known:
        """What the owner knows afterwards; `taken` is what it was told with a new lease."""
        calls = None
        if self._calls is not None:
            calls = [vars(call) for call in self._calls if not vars(call)["settled"]]
        chat = vars(self._chat)["_stored"]
        if taken is None:
            return Known(chat, self._known.now, self._known.read_at, [*self._ids], calls)
        now, *message_ids = taken
        return Known(chat, now, time.monotonic(), message_ids, calls)


def unlocked_of(tx: object) -> Unlocked | None:
    """What stands in for the transaction, if it is none."""
    return tx if isinstance(tx, Unlocked) else None


def _row(values: Mapping[str, Any]) -> Row:
    row = Row()
    row.read({name: value for name, value in values.items() if name != "_stored"})
    return row
