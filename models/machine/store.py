"""Where a transition reads its chat and writes what it did.

The machine's functions talk to a `Store` alone. There are two: `LockedStore`, a transaction that
holds the chat's row lock, for everybody; and `CasStore` (`cas_store.py`), for the lease holder, who
knows the row and writes all at once, by compare-and-set. The rules are the same on both. What only
the lock can answer (the queue, older messages, other chats) goes through `session`, which a
`CasStore` does not have.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeAlias
from uuid import UUID

from sqlalchemy import Uuid, and_, bindparam, exists, func, or_, select, text, update
from sqlalchemy.orm import Session

from models.base import table_of
from models.machine.one_statement import CALLS
from models.machine.rows import Row, store
from models.tables import Chat, ToolCallRow, Turn
from models.types import AnyText, Content
from rejoinder.core.effects import Fence
from rejoinder.core.messages import NewMessage, TurnState

_CHATS, _CALLS = table_of(Chat), table_of(ToolCallRow)
_LOCK = (
    select(
        *_CHATS.c,
        func.clock_timestamp().label("now"),
        exists()
        .where(_CALLS.c.chat_id == bindparam("chat_id"), ~_CALLS.c.settled)
        .label("has_open_calls"),
    )
    .where(_CHATS.c.id == bindparam("chat_id"))
    .with_for_update(of=_CHATS, key_share=True)
)
OPEN_CALLS = (
    select(_CALLS)
    .where(_CALLS.c.chat_id == bindparam("chat_id"), ~_CALLS.c.settled)
    .order_by(_CALLS.c.id)
)
"""The calls that history waits for, in call order. Index: tool_calls_open."""
_APPEND = text("""
WITH m AS (
    INSERT INTO rejoinder.messages
           (chat_id, turn_id, role, visibility, compressed, revision, parts, model, context_limit,
            runtime_ms, stop_reason, request_id, cost_micros, input_tokens, output_tokens,
            cache_read_tokens, cache_write_tokens, reasoning_tokens)
    VALUES (:chat_id, :turn_id, :role, :visibility, :compressed, :revision, :parts, :model,
            :context_limit, :runtime_ms, :stop_reason, :request_id, :cost_micros, :input_tokens,
            :output_tokens, :cache_read_tokens, :cache_write_tokens, :reasoning_tokens)
    RETURNING id, created_at
), t AS (
    UPDATE rejoinder.turns SET steps = steps + 1 WHERE :is_step AND id = :turn_id
), k AS (
    INSERT INTO rejoinder.tool_calls
           (chat_id, message_id, call_id, name, arguments, kind, delivery, external_id, approval,
            patience, default_answer, waits_for, state, started_at)
    SELECT :chat_id, m.id, c.call_id, c.name, c.arguments, c.kind, c.delivery, c.external_id,
           c.approval, c.patience, c.default_answer, CAST(c.waits_for AS uuid[]), c.state,
           c.started_at
      FROM m, unnest(
           CAST(:call_id AS text[]), CAST(:name AS text[]), CAST(:arguments AS json[]),
           CAST(:kind AS text[]), CAST(:delivery AS text[]), CAST(:external_id AS text[]),
           CAST(:approval AS text[]), CAST(:patience AS double precision[]),
           CAST(:default_answer AS json[]), CAST(:waits_for AS text[]), CAST(:state AS text[]),
           CAST(:started_at AS timestamptz[]))
           AS c(call_id, name, arguments, kind, delivery, external_id, approval, patience,
                default_answer, waits_for, state, started_at)
)
SELECT id, created_at FROM m
""").bindparams(
    bindparam("chat_id", type_=Uuid),
    bindparam("turn_id", type_=Uuid),
    bindparam("parts", type_=Content),
    bindparam("request_id", type_=AnyText),
)
"""The message, the step that it was, and the calls it holds: one round trip.

Calls come as arrays: Postgres' functions that take JSON apart cannot read all that we store.
"""


class Store(Protocol):
    """What a transition needs of the rows of its one chat."""

    @property
    def can_stay(self) -> bool:
        """Whether the lease holder can claim the chat again with what it writes."""

    @property
    def session(self) -> Session:
        """The transaction that holds the lock."""

    def look(
        self, chat_id: UUID, fence: Fence | None
    ) -> tuple[dict[str, Any], datetime, bool] | None:
        """The chat's row, Postgres' clock, and whether calls are open; None: no such chat."""

    def open_calls(self, chat_id: UUID) -> Sequence[Row]:
        """The calls that history waits for, in order; what is changed of them will be written."""

    def note_calls(self, calls: Sequence[Mapping[str, Any]] | None) -> None:
        """Hear which calls are open from now on; None: others have a hand in them."""

    def append(
        self,
        message: NewMessage,
        given: dict[str, Any],
        calls: Sequence[Mapping[str, object]],
        *,
        is_step: bool,
    ) -> tuple[int, datetime | None]:
        """Add a message at the end of history, with its calls: its id, and when, if it is known."""

    def end_turn(self, turn_id: UUID, **values: Any) -> Sequence[UUID]:
        """Close a turn and those that joined it: the ids of those that are known to be over."""

    def stay(self) -> None:
        """Have the lease holder told what a claim tells."""

    def flush(self, chat: Chat) -> None:
        """Write what was changed so far, where that is not left to the end."""

    def end(self, chat: Chat) -> None:
        """Write what was changed."""


AnyStore: TypeAlias = Session | Store
"""A session stands for the locked store on it."""


def store_of(given: AnyStore) -> Store:
    """The store that a transition was given."""
    return LockedStore(given) if isinstance(given, Session) else given


class LockedStore:
    """A chat under its row lock, in a transaction."""

    can_stay = False

    def __init__(self, session: Session) -> None:
        """Begin with nothing read."""
        self.session = session
        self._calls: dict[int, Row] = {}
        """Rows of tool calls that were read, by their id."""

    def look(
        self, chat_id: UUID, _: Fence | None = None
    ) -> tuple[dict[str, Any], datetime, bool] | None:
        """Lock the row.

        FOR NO KEY UPDATE: excludes every other transition of this chat, but not the foreign-key
        checks of its messages and children.
        """
        found = self.session.execute(_LOCK, {"chat_id": chat_id}).mappings().one_or_none()
        if found is None:
            return None
        values = dict(found)
        return values, values.pop("now"), values.pop("has_open_calls")

    def open_calls(self, chat_id: UUID) -> Sequence[Row]:
        """Read them anew; whoever had one of these rows still has it."""
        found = []
        for values in self.session.execute(OPEN_CALLS, {"chat_id": chat_id}).mappings():
            row = self._calls.setdefault(values["id"], Row())
            row.read({**values})
            found.append(row)
        return found

    def note_calls(self, calls: Sequence[Mapping[str, Any]] | None) -> None:
        """Nothing to note: they are read."""

    def append(
        self,
        _: NewMessage,
        given: dict[str, Any],
        calls: Sequence[Mapping[str, object]],
        *,
        is_step: bool,
    ) -> tuple[int, datetime | None]:
        """Write it now: the id is its place, taken under the lock."""
        of_calls = {name: [call[name] for call in calls] for name in CALLS}
        row = self.session.execute(_APPEND, {**given, "is_step": is_step, **of_calls}).one()
        return int(row.id), row.created_at

    def end_turn(self, turn_id: UUID, **values: Any) -> Sequence[UUID]:
        """Write it now."""
        joined = and_(Turn.joined_id == turn_id, Turn.state == TurnState.JOINED)
        over = self.session.scalars(
            update(Turn)
            .where(or_(Turn.id == turn_id, joined))
            .values(values)
            .returning(Turn.id)
            .execution_options(synchronize_session=False)
        ).all()
        return sorted(over, key=lambda each: each != turn_id)

    def stay(self) -> None:
        """Not here (`can_stay`): who has waited for the lock may find that it is anybody's."""
        raise AssertionError("a chat under the lock is committed, and claimed by whoever comes")

    def flush(self, chat: Chat) -> None:
        """Write the chat, and its calls."""
        if isinstance(chat, Row):
            store(self.session, _CHATS, chat)
        else:
            self.session.flush()  # one of a whole tree, which was read at once
        for call in self._calls.values():
            store(self.session, _CALLS, call)

    end = flush
