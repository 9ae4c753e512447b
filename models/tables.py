"""The rows, and what a row can say.

Every rule of the state machine that one row can break is a CHECK here, with a name of its own, so
that not even a bug or an operator's SQL can store a chat that the code does not know how to
continue. There are no relationships: rows are reached by explicit queries, so nothing is ever
loaded by surprise. How rows change is `machine/`; how they got their shape is `migrations/`.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    SmallInteger,
    Text,
    Uuid,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from models.base import BORN, NOW, Base, check, one_of
from models.types import AnyText, Content, Labels, Moment, words
from rejoinder.core.limits import MAX_QUEUED
from rejoinder.core.messages import (
    ANSWERED,
    ActionKind,
    Approval,
    CallKind,
    CallState,
    Delivery,
    Role,
    TitleSource,
    TurnKind,
    TurnState,
    Visibility,
)
from rejoinder.core.parts import Json
from rejoinder.core.state import AT_REST, LEASED, PARKED, Status


class Worker(Base):
    """One process that runs steps. Its heartbeat keeps all of its chats."""

    __tablename__ = "workers"

    id: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    name: Mapped[str] = mapped_column(Text)
    started_at: Mapped[datetime] = mapped_column(Moment, server_default=NOW)
    seen_at: Mapped[datetime] = mapped_column(Moment, server_default=NOW)


class Chat(Base):
    """One conversation and its execution state."""

    __tablename__ = "chats"

    id: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    owner: Mapped[str] = mapped_column(Text)
    parent_id: Mapped[UUID | None] = mapped_column(ForeignKey("chats.id"))
    root_id: Mapped[UUID] = mapped_column(ForeignKey("chats.id"))
    labels: Mapped[Mapping[str, str]] = mapped_column(Labels, server_default=text("'{}'"))
    model: Mapped[str] = mapped_column(Text, server_default="")
    options: Mapped[Mapping[str, Json]] = mapped_column(Content, server_default=text("'{}'"))
    title: Mapped[str] = mapped_column(AnyText, server_default="")
    title_source: Mapped[TitleSource] = mapped_column(
        words(TitleSource), server_default=TitleSource.WORDS
    )

    status: Mapped[Status] = mapped_column(words(Status))
    archived: Mapped[bool] = mapped_column(server_default=text("false"))
    turn_id: Mapped[UUID | None] = mapped_column(
        ForeignKey("turns.id", use_alter=True, deferrable=True, initially="DEFERRED")
    )
    lease_id: Mapped[UUID | None] = mapped_column(Uuid)
    worker_id: Mapped[UUID | None] = mapped_column(ForeignKey("workers.id"))
    step_id: Mapped[UUID | None] = mapped_column(Uuid)
    """The Celery task of the step that runs, that was rung for, or that parked the chat."""
    deadline: Mapped[datetime | None] = mapped_column(Moment)
    last_error: Mapped[Mapping[str, Json] | None] = mapped_column(Content)
    action: Mapped[ActionKind | None] = mapped_column(words(ActionKind))
    """What a chat that requires action waits for; meaningless in any other status."""
    queue_length: Mapped[int] = mapped_column(SmallInteger, server_default=text("0"))
    woken: Mapped[bool] = mapped_column(server_default=text("false"))

    run_after: Mapped[datetime | None] = mapped_column(Moment)
    dispatches: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    redispatch_at: Mapped[datetime | None] = mapped_column(Moment)
    attempt: Mapped[int] = mapped_column(SmallInteger, server_default=text("0"))
    retry_state: Mapped[Mapping[str, Json] | None] = mapped_column(Content)
    crashes: Mapped[int] = mapped_column(SmallInteger, server_default=text("0"))
    claims_since_progress: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    """Claims since the chat last got anywhere; too many stop it, whatever the reason."""
    partial: Mapped[Mapping[str, Json] | None] = mapped_column(Content)
    """What readers have seen of an answer whose worker went away: a stop saves it."""

    budget_tokens: Mapped[int | None] = mapped_column(BigInteger)
    """What the whole tree may use; only a root has one. So with the next."""
    budget_micros: Mapped[int | None] = mapped_column(BigInteger)
    used_calls: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    """Model calls of this chat alone, and what they took: deleted messages stay counted."""
    used_input: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    used_output: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    used_cache_read: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    used_cache_write: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    used_reasoning: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    used_micros: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    used_unpriced: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    """Calls whose cost nobody knows."""
    used_ms: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))

    snapshot_version: Mapped[int] = mapped_column(BigInteger, server_default=text("1"))
    history_version: Mapped[int] = mapped_column(BigInteger, server_default=text("1"))
    queue_version: Mapped[int] = mapped_column(BigInteger, server_default=text("1"))
    created_at: Mapped[datetime] = mapped_column(Moment, server_default=BORN)
    updated_at: Mapped[datetime] = mapped_column(Moment, server_default=BORN)

    __table_args__ = (
        check("status_known", one_of("status", Status)),
        check("lease_iff_owned", f"(lease_id IS NOT NULL) = ({one_of('status', LEASED)})"),
        check("owner_iff_lease", "(worker_id IS NULL) = (lease_id IS NULL)"),
        check("error_iff_error", "(last_error IS NOT NULL) = (status = 'error')"),
        check("deadline_iff_parked", f"(deadline IS NOT NULL) = ({one_of('status', PARKED)})"),
        check("action_known", f"action IS NULL OR {one_of('action', ActionKind)}"),
        check("title_source_known", one_of("title_source", TitleSource)),
        check("budgets", "budget_tokens >= 0 AND budget_micros >= 0"),
        check("turn_iff_busy", f"(turn_id IS NULL) = ({one_of('status', AT_REST)})"),
        check("archived_at_rest", f"NOT archived OR {one_of('status', AT_REST)}"),
        check("queue_bounded", f"queue_length BETWEEN 0 AND {MAX_QUEUED}"),
        check("waiting_has_no_queue", "status <> 'waiting' OR queue_length = 0"),
        check("redispatch_iff_pending", "(redispatch_at IS NOT NULL) = (status = 'pending')"),
        check("run_after_is_pending", "run_after IS NULL OR status = 'pending'"),
        check(
            "woken_is_awake", f"NOT woken OR NOT ({one_of('status', AT_REST | {Status.SLEEPING})})"
        ),
        check("retry_iff_attempt", "(retry_state IS NOT NULL) = (attempt > 0)"),
        check("attempt_is_busy", f"attempt = 0 OR NOT ({one_of('status', AT_REST)})"),
        check("error_is_object", "last_error IS NULL OR json_typeof(last_error) = 'object'"),
        check("partial_is_pending", "partial IS NULL OR status = 'pending'"),
        check("counts", "least(attempt, crashes, dispatches, claims_since_progress) >= 0"),
        check(
            "versions",
            "history_version BETWEEN 1 AND snapshot_version"
            " AND queue_version BETWEEN 1 AND snapshot_version",
        ),
        check("root_of_itself", "(parent_id IS NULL) = (root_id = id)"),
        check("owner_given", "owner <> ''"),
        Index("chats_overdue", "redispatch_at", postgresql_where=text("status = 'pending'")),
        Index("chats_leased", "worker_id", postgresql_where=text("worker_id IS NOT NULL")),
        Index("chats_parked", "deadline", postgresql_where=text("deadline IS NOT NULL")),
        Index("chats_step", "step_id", postgresql_where=text("step_id IS NOT NULL")),
        Index("chats_children", "parent_id", postgresql_where=text("parent_id IS NOT NULL")),
        Index("chats_owner", "owner", "id"),
        Index("chats_tree", "root_id", "id", postgresql_where=text("parent_id IS NOT NULL")),
    )


class Turn(Base):
    """From one message (or retry, or compaction request) to its answer."""

    __tablename__ = "turns"

    id: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    chat_id: Mapped[UUID] = mapped_column(ForeignKey("chats.id", ondelete="CASCADE"))
    kind: Mapped[TurnKind] = mapped_column(words(TurnKind))
    state: Mapped[TurnState] = mapped_column(words(TurnState))
    message_id: Mapped[int | None] = mapped_column(BigInteger)
    answer_id: Mapped[int | None] = mapped_column(BigInteger)
    error: Mapped[Mapping[str, Json] | None] = mapped_column(Content)
    steps: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    created_at: Mapped[datetime] = mapped_column(Moment, server_default=BORN)
    ended_at: Mapped[datetime | None] = mapped_column(Moment)
    joined_id: Mapped[UUID | None] = mapped_column(Uuid)
    """The turn that its message went into."""
    announced: Mapped[bool] = mapped_column(server_default=text("false"))
    """Whether its result was stored for those who wait for it; the sweep sees to the others."""

    __table_args__ = (
        check("kind_known", one_of("kind", TurnKind)),
        check("state_known", one_of("state", TurnState)),
        check("ended_iff_over", "(ended_at IS NULL) = (state IN ('open', 'queued', 'joined'))"),
        check("error_iff_failed", "(error IS NOT NULL) = (state = 'failed')"),
        check("answer_if_finished", "answer_id IS NULL OR state IN ('finished', 'interrupted')"),
        check("steps", "steps >= 0"),
        Index("turns_chat", "chat_id", "id"),
        Index(
            "turns_unannounced",
            "ended_at",
            postgresql_where=text("ended_at IS NOT NULL AND NOT announced"),
        ),
        Index("turns_open", "chat_id", unique=True, postgresql_where=text("state = 'open'")),
        Index("turns_joined", "joined_id", postgresql_where=text("state = 'joined'")),
    )


class Message(Base):
    """One entry of history. Its id, allocated under the chat's lock, is the order.

    The primary key begins with the chat: everybody who looks for messages knows whose they are, and
    without an index on the id alone no plan can walk through other chats' messages.
    """

    __tablename__ = "messages"

    chat_id: Mapped[UUID] = mapped_column(
        ForeignKey("chats.id", ondelete="CASCADE"), primary_key=True
    )
    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True, cache=1), primary_key=True)
    turn_id: Mapped[UUID | None] = mapped_column(Uuid)
    role: Mapped[Role] = mapped_column(words(Role))
    visibility: Mapped[Visibility] = mapped_column(words(Visibility))
    compressed: Mapped[bool] = mapped_column(server_default=text("false"))
    deleted: Mapped[bool] = mapped_column(server_default=text("false"))
    revision: Mapped[int] = mapped_column(BigInteger)
    parts: Mapped[Sequence[Mapping[str, Json]]] = mapped_column(Content)
    model: Mapped[str | None] = mapped_column(Text)
    input_tokens: Mapped[int | None] = mapped_column(Integer)
    output_tokens: Mapped[int | None] = mapped_column(Integer)
    cache_read_tokens: Mapped[int | None] = mapped_column(Integer)
    cache_write_tokens: Mapped[int | None] = mapped_column(Integer)
    reasoning_tokens: Mapped[int | None] = mapped_column(Integer)
    context_limit: Mapped[int | None] = mapped_column(Integer)
    runtime_ms: Mapped[int | None] = mapped_column(Integer)
    stop_reason: Mapped[str | None] = mapped_column(Text)
    request_id: Mapped[str | None] = mapped_column(AnyText)
    cost_micros: Mapped[int | None] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = mapped_column(Moment, server_default=BORN)

    __table_args__ = (
        check("role_known", one_of("role", Role)),
        check("visibility_known", one_of("visibility", Visibility)),
        check(
            "tokens",
            "least(input_tokens, output_tokens, cache_read_tokens, cache_write_tokens,"
            " reasoning_tokens, context_limit, runtime_ms) >= 0",
        ),
        Index(
            "messages_boundary",
            "chat_id",
            "id",
            postgresql_where=text("compressed AND visibility = 'model' AND NOT deleted"),
        ),
        Index(
            "messages_system",
            "chat_id",
            "id",
            postgresql_where=text("role = 'system' AND NOT compressed AND NOT deleted"),
        ),
    )


class QueuedMessage(Base):
    """A message that waits for its turn."""

    __tablename__ = "queued_messages"

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    chat_id: Mapped[UUID] = mapped_column(ForeignKey("chats.id", ondelete="CASCADE"))
    turn_id: Mapped[UUID] = mapped_column(ForeignKey("turns.id", ondelete="CASCADE"))
    position: Mapped[int] = mapped_column(BigInteger)
    parts: Mapped[Sequence[Mapping[str, Json]]] = mapped_column(Content)
    model: Mapped[str | None] = mapped_column(Text)
    steer: Mapped[bool] = mapped_column(server_default=text("false"))
    """It joins the turn that runs, at the next step."""
    created_at: Mapped[datetime] = mapped_column(Moment, server_default=BORN)

    __table_args__ = (Index("queued_messages_order", "chat_id", "position", unique=True),)


class ToolCallRow(Base):
    """One tool call of one assistant message, and what became of it.

    `settled` means that history no longer waits for it: its result is there, or the message that
    asked for it is gone.
    """

    __tablename__ = "tool_calls"

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    chat_id: Mapped[UUID] = mapped_column(Uuid)
    message_id: Mapped[int] = mapped_column(BigInteger)
    call_id: Mapped[str] = mapped_column(AnyText)
    name: Mapped[str] = mapped_column(AnyText)
    arguments: Mapped[Mapping[str, Json]] = mapped_column(Content)
    kind: Mapped[CallKind] = mapped_column(words(CallKind))
    delivery: Mapped[Delivery] = mapped_column(words(Delivery))
    state: Mapped[CallState] = mapped_column(words(CallState))
    result: Mapped[Mapping[str, Json] | None] = mapped_column(Content)
    settled: Mapped[bool] = mapped_column(server_default=text("false"))
    external_id: Mapped[str | None] = mapped_column(AnyText)
    approval: Mapped[Approval | None] = mapped_column(words(Approval))
    note: Mapped[str | None] = mapped_column(AnyText)
    """What the person who allowed it said."""
    patience: Mapped[float | None] = mapped_column(Double)
    """Seconds to wait for an answer from outside; the worker's default, if it does not say."""
    deadline: Mapped[datetime | None] = mapped_column(Moment)
    """Set when the chat first parks for it."""
    default_answer: Mapped[Mapping[str, Json] | None] = mapped_column(Content)
    waits_for: Mapped[Sequence[UUID] | None] = mapped_column(ARRAY(Uuid))
    sent: Mapped[bool] = mapped_column(server_default=text("false"))
    """Whether the broker took the other app's task."""
    created_at: Mapped[datetime] = mapped_column(Moment, server_default=BORN)
    started_at: Mapped[datetime | None] = mapped_column(Moment)
    ended_at: Mapped[datetime | None] = mapped_column(Moment)

    __table_args__ = (
        check("kind_known", one_of("kind", CallKind)),
        check("delivery_known", one_of("delivery", Delivery)),
        check("approval_known", f"approval IS NULL OR {one_of('approval', Approval)}"),
        check("state_known", one_of("state", CallState)),
        check("result_iff_answered", f"(result IS NOT NULL) = ({one_of('state', ANSWERED)})"),
        check("settled_is_answered", f"NOT settled OR {one_of('state', ANSWERED)}"),
        check("ended_iff_answered", f"(ended_at IS NOT NULL) = ({one_of('state', ANSWERED)})"),
        check("started_has_time", "state <> 'started' OR started_at IS NOT NULL"),
        ForeignKeyConstraint(
            ["chat_id", "message_id"],
            ["rejoinder.messages.chat_id", "rejoinder.messages.id"],
            ondelete="CASCADE",
        ),
        Index("tool_calls_message", "chat_id", "message_id", "call_id", unique=True),
        Index("tool_calls_open", "chat_id", "id", postgresql_where=text("NOT settled")),
        Index(
            "tool_calls_outside",
            "id",
            postgresql_where=text("kind = 'external' AND NOT settled"),
        ),
    )


class StepRow(Base):
    """What one run of one step took: written with whatever ended it, and never changed.

    Milliseconds, as the worker measured them; none if the worker died.
    """

    __tablename__ = "steps"

    chat_id: Mapped[UUID] = mapped_column(
        ForeignKey("chats.id", ondelete="CASCADE"), primary_key=True
    )
    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    turn_id: Mapped[UUID | None] = mapped_column(Uuid)
    task_id: Mapped[UUID | None] = mapped_column(Uuid)
    """Celery's id of the task."""
    worker: Mapped[str] = mapped_column(Text)
    attempt: Mapped[int] = mapped_column(SmallInteger)
    outcome: Mapped[str] = mapped_column(Text)
    """The transition that ended it."""
    began_at: Mapped[datetime] = mapped_column(Moment)
    ended_at: Mapped[datetime] = mapped_column(Moment, server_default=BORN)
    claim_ms: Mapped[float | None] = mapped_column(Double)
    load_ms: Mapped[float | None] = mapped_column(Double)
    model_ms: Mapped[float | None] = mapped_column(Double)
    tools_ms: Mapped[float | None] = mapped_column(Double)
    write_ms: Mapped[float | None] = mapped_column(Double)
    """What it wrote before the last transaction, and that one as far as this row."""
    input_tokens: Mapped[int | None] = mapped_column(Integer)
    output_tokens: Mapped[int | None] = mapped_column(Integer)


class IdempotencyKey(Base):
    """A request that was carried out, so that its repetition gives the same answer.

    A table of its own, not a column: chats are updated several times a step, and every index on
    them is paid for each time. The key is taken before the chat exists, hence the deferred check.
    """

    __tablename__ = "idempotency_keys"

    owner: Mapped[str] = mapped_column(Text, primary_key=True)
    key: Mapped[str] = mapped_column(Text, primary_key=True)
    fingerprint: Mapped[str] = mapped_column(Text)
    chat_id: Mapped[UUID] = mapped_column(
        ForeignKey("chats.id", ondelete="CASCADE", deferrable=True, initially="DEFERRED")
    )
    turn_id: Mapped[UUID | None] = mapped_column(Uuid)
    receipt: Mapped[Mapping[str, Json] | None] = mapped_column(Content)
    """The first answer, for whoever asks again."""
    created_at: Mapped[datetime] = mapped_column(Moment, server_default=BORN)

    __table_args__ = (
        Index("idempotency_keys_chat", "chat_id"),
        Index("idempotency_keys_age", "created_at"),
    )


class Sweep(Base):
    """When a sweep was last done, so that any worker notices that nobody sweeps."""

    __tablename__ = "sweeps"

    name: Mapped[str] = mapped_column(Text, primary_key=True)
    swept_at: Mapped[datetime] = mapped_column(Moment, server_default=NOW)
