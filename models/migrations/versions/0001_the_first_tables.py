"""The first tables: chats, turns, messages, queue, tool calls, workers, idempotency keys.

In SQL, and complete: later changes to the code's tables do not change what this migration did.
"""

from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create everything. The schema itself is there: Alembic keeps its own table in it."""
    op.execute(TABLES)


def downgrade() -> None:
    """Remove everything, rows included."""
    op.execute("""
        ALTER TABLE rejoinder.chats DROP CONSTRAINT chats_turn_id_fkey;
        DROP TABLE rejoinder.idempotency_keys, rejoinder.tool_calls, rejoinder.queued_messages,
            rejoinder.messages, rejoinder.turns, rejoinder.chats, rejoinder.workers;
    """)


TABLES = """
CREATE TABLE rejoinder.workers (
    id UUID NOT NULL,
    name TEXT NOT NULL,
    started_at timestamptz DEFAULT now() NOT NULL,
    seen_at timestamptz DEFAULT now() NOT NULL,
    CONSTRAINT workers_pkey PRIMARY KEY (id)
);
CREATE TABLE rejoinder.chats (
    id UUID NOT NULL,
    owner TEXT NOT NULL,
    parent_id UUID,
    root_id UUID NOT NULL,
    labels JSONB DEFAULT '{}' NOT NULL,
    model TEXT DEFAULT '' NOT NULL,
    options JSON DEFAULT '{}' NOT NULL,
    status VARCHAR(32) NOT NULL,
    archived BOOLEAN DEFAULT false NOT NULL,
    turn_id UUID,
    lease_id UUID,
    worker_id UUID,
    deadline timestamptz,
    last_error JSON,
    queue_length SMALLINT DEFAULT 0 NOT NULL,
    woken BOOLEAN DEFAULT false NOT NULL,
    run_after timestamptz,
    dispatches INTEGER DEFAULT 0 NOT NULL,
    redispatch_at timestamptz,
    attempt SMALLINT DEFAULT 0 NOT NULL,
    retry_state JSON,
    crashes SMALLINT DEFAULT 0 NOT NULL,
    snapshot_version BIGINT DEFAULT 1 NOT NULL,
    history_version BIGINT DEFAULT 1 NOT NULL,
    queue_version BIGINT DEFAULT 1 NOT NULL,
    created_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    updated_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT chats_pkey PRIMARY KEY (id),
    CONSTRAINT chats_status_known
        CHECK (status IN ('error', 'interrupting', 'pending', 'requires_action',
            'running', 'sleeping', 'waiting')),
    CONSTRAINT chats_lease_iff_owned
        CHECK ((lease_id IS NOT NULL) = (status IN ('interrupting', 'running'))),
    CONSTRAINT chats_owner_iff_lease CHECK ((worker_id IS NULL) = (lease_id IS NULL)),
    CONSTRAINT chats_error_iff_error CHECK ((last_error IS NOT NULL) = (status = 'error')),
    CONSTRAINT chats_deadline_iff_parked
        CHECK ((deadline IS NOT NULL) = (status IN ('requires_action', 'sleeping'))),
    CONSTRAINT chats_turn_iff_busy CHECK ((turn_id IS NULL) = (status IN ('error', 'waiting'))),
    CONSTRAINT chats_archived_at_rest CHECK (NOT archived OR status IN ('error', 'waiting')),
    CONSTRAINT chats_queue_bounded CHECK (queue_length BETWEEN 0 AND 20),
    CONSTRAINT chats_waiting_has_no_queue CHECK (status <> 'waiting' OR queue_length = 0),
    CONSTRAINT chats_redispatch_iff_pending
        CHECK ((redispatch_at IS NOT NULL) = (status = 'pending')),
    CONSTRAINT chats_run_after_is_pending CHECK (run_after IS NULL OR status = 'pending'),
    CONSTRAINT chats_woken_is_awake
        CHECK (NOT woken OR NOT (status IN ('error', 'sleeping', 'waiting'))),
    CONSTRAINT chats_retry_iff_attempt CHECK ((retry_state IS NOT NULL) = (attempt > 0)),
    CONSTRAINT chats_attempt_is_busy
        CHECK (attempt = 0 OR NOT (status IN ('error', 'waiting'))),
    CONSTRAINT chats_error_is_object
        CHECK (last_error IS NULL OR json_typeof(last_error) = 'object'),
    CONSTRAINT chats_counts CHECK (attempt >= 0 AND crashes >= 0 AND dispatches >= 0),
    CONSTRAINT chats_versions
        CHECK (history_version BETWEEN 1 AND snapshot_version
            AND queue_version BETWEEN 1 AND snapshot_version),
    CONSTRAINT chats_root_of_itself CHECK ((parent_id IS NULL) = (root_id = id)),
    CONSTRAINT chats_owner_given CHECK (owner <> ''),
    CONSTRAINT chats_parent_id_fkey FOREIGN KEY(parent_id) REFERENCES rejoinder.chats (id),
    CONSTRAINT chats_root_id_fkey FOREIGN KEY(root_id) REFERENCES rejoinder.chats (id),
    CONSTRAINT chats_worker_id_fkey FOREIGN KEY(worker_id) REFERENCES rejoinder.workers (id)
);
CREATE INDEX chats_children ON rejoinder.chats (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX chats_leased ON rejoinder.chats (worker_id) WHERE worker_id IS NOT NULL;
CREATE INDEX chats_overdue ON rejoinder.chats (redispatch_at) WHERE status = 'pending';
CREATE INDEX chats_parked ON rejoinder.chats (deadline) WHERE deadline IS NOT NULL;
CREATE INDEX chats_tree ON rejoinder.chats (root_id, id) WHERE parent_id IS NOT NULL;
CREATE TABLE rejoinder.turns (
    id UUID NOT NULL,
    chat_id UUID NOT NULL,
    kind VARCHAR(32) NOT NULL,
    state VARCHAR(32) NOT NULL,
    message_id BIGINT,
    answer_id BIGINT,
    error JSON,
    steps INTEGER DEFAULT 0 NOT NULL,
    created_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    ended_at timestamptz,
    CONSTRAINT turns_pkey PRIMARY KEY (id),
    CONSTRAINT turns_kind_known CHECK (kind IN ('compaction', 'message', 'retry')),
    CONSTRAINT turns_state_known
        CHECK (state IN ('cancelled', 'failed', 'finished', 'interrupted', 'open', 'queued')),
    CONSTRAINT turns_ended_iff_over CHECK ((ended_at IS NULL) = (state IN ('open', 'queued'))),
    CONSTRAINT turns_error_iff_failed CHECK ((error IS NOT NULL) = (state = 'failed')),
    CONSTRAINT turns_answer_if_finished
        CHECK (answer_id IS NULL OR state IN ('finished', 'interrupted')),
    CONSTRAINT turns_steps CHECK (steps >= 0),
    CONSTRAINT turns_chat_id_fkey
        FOREIGN KEY(chat_id) REFERENCES rejoinder.chats (id) ON DELETE CASCADE
);
CREATE INDEX turns_chat ON rejoinder.turns (chat_id, id);
CREATE UNIQUE INDEX turns_open ON rejoinder.turns (chat_id) WHERE state = 'open';
CREATE TABLE rejoinder.messages (
    chat_id UUID NOT NULL,
    id BIGINT GENERATED ALWAYS AS IDENTITY (CACHE 1),
    turn_id UUID,
    role VARCHAR(32) NOT NULL,
    visibility VARCHAR(32) NOT NULL,
    compressed BOOLEAN DEFAULT false NOT NULL,
    deleted BOOLEAN DEFAULT false NOT NULL,
    revision BIGINT NOT NULL,
    parts JSON NOT NULL,
    model TEXT,
    input_tokens INTEGER,
    output_tokens INTEGER,
    cache_read_tokens INTEGER,
    cache_write_tokens INTEGER,
    reasoning_tokens INTEGER,
    context_limit INTEGER,
    runtime_ms INTEGER,
    created_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT messages_pkey PRIMARY KEY (chat_id, id),
    CONSTRAINT messages_role_known CHECK (role IN ('assistant', 'system', 'tool', 'user')),
    CONSTRAINT messages_visibility_known CHECK (visibility IN ('both', 'model', 'user')),
    CONSTRAINT messages_tokens
        CHECK ((input_tokens IS NULL OR input_tokens >= 0)
            AND (output_tokens IS NULL OR output_tokens >= 0)
            AND (cache_read_tokens IS NULL OR cache_read_tokens >= 0)
            AND (cache_write_tokens IS NULL OR cache_write_tokens >= 0)
            AND (reasoning_tokens IS NULL OR reasoning_tokens >= 0)
            AND (context_limit IS NULL OR context_limit >= 0)
            AND (runtime_ms IS NULL OR runtime_ms >= 0)),
    CONSTRAINT messages_chat_id_fkey
        FOREIGN KEY(chat_id) REFERENCES rejoinder.chats (id) ON DELETE CASCADE
);
CREATE INDEX messages_boundary ON rejoinder.messages (chat_id, id)
    WHERE compressed AND visibility = 'model' AND NOT deleted;
CREATE INDEX messages_system ON rejoinder.messages (chat_id, id)
    WHERE role = 'system' AND NOT compressed AND NOT deleted;
CREATE TABLE rejoinder.queued_messages (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    chat_id UUID NOT NULL,
    turn_id UUID NOT NULL,
    position BIGINT NOT NULL,
    parts JSON NOT NULL,
    model TEXT,
    created_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT queued_messages_pkey PRIMARY KEY (id),
    CONSTRAINT queued_messages_chat_id_fkey
        FOREIGN KEY(chat_id) REFERENCES rejoinder.chats (id) ON DELETE CASCADE,
    CONSTRAINT queued_messages_turn_id_fkey
        FOREIGN KEY(turn_id) REFERENCES rejoinder.turns (id) ON DELETE CASCADE
);
CREATE UNIQUE INDEX queued_messages_order ON rejoinder.queued_messages (chat_id, position);
CREATE TABLE rejoinder.tool_calls (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    chat_id UUID NOT NULL,
    message_id BIGINT NOT NULL,
    call_id TEXT NOT NULL,
    name TEXT NOT NULL,
    arguments JSON NOT NULL,
    kind VARCHAR(32) NOT NULL,
    delivery VARCHAR(32) NOT NULL,
    state VARCHAR(32) NOT NULL,
    result JSON,
    settled BOOLEAN DEFAULT false NOT NULL,
    external_id TEXT,
    created_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    started_at timestamptz,
    ended_at timestamptz,
    CONSTRAINT tool_calls_pkey PRIMARY KEY (id),
    CONSTRAINT tool_calls_kind_known CHECK (kind IN ('client', 'external', 'local')),
    CONSTRAINT tool_calls_delivery_known CHECK (delivery IN ('idempotent', 'once')),
    CONSTRAINT tool_calls_state_known
        CHECK (state IN ('finished', 'requested', 'started', 'unknown')),
    CONSTRAINT tool_calls_result_iff_answered
        CHECK ((result IS NOT NULL) = (state IN ('finished', 'unknown'))),
    CONSTRAINT tool_calls_settled_is_answered
        CHECK (NOT settled OR state IN ('finished', 'unknown')),
    CONSTRAINT tool_calls_ended_iff_answered
        CHECK ((ended_at IS NOT NULL) = (state IN ('finished', 'unknown'))),
    CONSTRAINT tool_calls_started_has_time CHECK (state <> 'started' OR started_at IS NOT NULL),
    CONSTRAINT tool_calls_chat_id_fkey
        FOREIGN KEY(chat_id, message_id) REFERENCES rejoinder.messages (chat_id, id)
        ON DELETE CASCADE
);
CREATE UNIQUE INDEX tool_calls_message ON rejoinder.tool_calls (chat_id, message_id, call_id);
CREATE INDEX tool_calls_open ON rejoinder.tool_calls (chat_id, id) WHERE NOT settled;
CREATE TABLE rejoinder.idempotency_keys (
    owner TEXT NOT NULL,
    key TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    chat_id UUID NOT NULL,
    turn_id UUID NOT NULL,
    created_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT idempotency_keys_pkey PRIMARY KEY (owner, key),
    CONSTRAINT idempotency_keys_chat_id_fkey
        FOREIGN KEY(chat_id) REFERENCES rejoinder.chats (id) ON DELETE CASCADE
        DEFERRABLE INITIALLY DEFERRED
);
CREATE INDEX idempotency_keys_chat ON rejoinder.idempotency_keys (chat_id);
ALTER TABLE rejoinder.chats
    ADD CONSTRAINT chats_turn_id_fkey FOREIGN KEY(turn_id) REFERENCES rejoinder.turns (id)
    DEFERRABLE INITIALLY DEFERRED;
"""
