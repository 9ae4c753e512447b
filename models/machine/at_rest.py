"""A message to a chat at rest, in two round trips: a look, and one statement that writes it all.

Nobody owns such a chat, but everybody can know it: every transition of anybody adds one to
`snapshot_version`, so what a look without a lock has found still is so if the version is the same
when it is written (`owner.py` has the rest of the argument). The transition's own function runs on
what was found; if it has to know more, if it refuses, or if somebody was quicker, nothing was
written, and the caller runs it under the lock. So there is one set of rules.

The place in history is taken by the look, before the row is locked. Whoever took a later one, and
wrote it first, has changed the version; whoever took an earlier one was an owner, and has lost the
chat: ids are still in the order of what was said.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from psycopg2.errors import LockNotAvailable
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from models.machine import one_statement
from models.machine.claim import COLUMNS, NAMES, chat_of
from models.machine.unlocked import Known, NeedsLockError, Unlocked
from models.prepared import Prepared
from rejoinder.core.effects import Effects
from rejoinder.core.errors import Refused

_LOOK = Prepared(f"""
SELECT {COLUMNS}, clock_timestamp(), nextval('rejoinder.messages_id_seq')
  FROM rejoinder.chats AS c
 WHERE c.id = CAST(%(chat_id)s AS uuid) AND c.status IN ('waiting', 'error')
   AND NOT c.archived AND c.queue_length = 0
   AND NOT EXISTS (SELECT FROM rejoinder.tool_calls AS k WHERE k.chat_id = c.id AND NOT k.settled)
""")  # noqa: S608  # names of our own columns
"""Nothing queued, no open calls: else a message means more than one row. Locks nothing. Indexes:
chats_pkey, tool_calls_open."""


class AtRest(Unlocked):
    """Stands in for the transaction of anybody: `begin` asks for no fence."""

    for_anybody = True


@dataclass(frozen=True)
class Planned:
    """A transition that is worked out, and not written yet."""

    effects: Effects
    expected: int
    """The version that it is right for."""
    parts: AtRest

    def write(self, engine: Engine) -> bool:
        """Write it, as a transaction of its own; False, and nothing written, if it is not right."""
        chat_id, parts = self.effects.chat_id, self.parts.parts
        try:
            return one_statement.execute(engine, chat_id, self.expected, parts) is not None
        except DBAPIError as error:
            if not isinstance(error.orig, LockNotAvailable):
                raise
            return False  # it is held for long: whoever waits for it with patience finds out


def look(engine: Engine, chat_id: UUID) -> Known | None:
    """The chat, if it is at rest and nothing waits in it."""
    found = _LOOK.one(engine, {"chat_id": chat_id})
    if found is None:
        return None
    *values, now, message_id = found
    row = SimpleNamespace(**dict(zip(NAMES, values, strict=True)))
    return Known(chat_of(row), now, time.monotonic(), (message_id,), ())


def plan(engine: Engine, chat_id: UUID, run: Callable[[Session], Any]) -> Planned | None:
    """Work out a transition of a chat at rest; None: under the lock, please. Writes nothing."""
    known = look(engine, chat_id)
    if known is None:
        return None
    parts = AtRest(known)
    try:
        effects: Effects = run(cast("Session", parts))
    except (NeedsLockError, Refused):
        return None  # a refusal may be about old news: the row itself decides
    if "chat" not in parts.parts:
        return None  # it changes nothing, or has no end
    return Planned(effects, known.chat["snapshot_version"], parts)
