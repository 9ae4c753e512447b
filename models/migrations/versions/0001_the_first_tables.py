"""The first tables.

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
        DROP TABLE rejoinder.sweeps, rejoinder.idempotency_keys, rejoinder.steps,
            rejoinder.tool_calls, rejoinder.queued_messages, rejoinder.messages, rejoinder.turns,
            rejoinder.chats, rejoinder.workers;
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
    title TEXT DEFAULT '' NOT NULL,
    title_source VARCHAR(32) DEFAULT 'words' NOT NULL,
    status VARCHAR(32) NOT NULL,
    archived BOOLEAN DEFAULT false NOT NULL,
    turn_id UUID,
    lease_id UUID,
    worker_id UUID,
    step_id UUID,
    deadline timestamptz,
    last_error JSON,
    action VARCHAR(32),
    queue_length SMALLINT DEFAULT 0 NOT NULL,
    woken BOOLEAN DEFAULT false NOT NULL,
    run_after timestamptz,
    dispatches INTEGER DEFAULT 0 NOT NULL,
    redispatch_at timestamptz,
    attempt SMALLINT DEFAULT 0 NOT NULL,
    retry_state JSON,
    crashes SMALLINT DEFAULT 0 NOT NULL,
    claims_since_progress INTEGER DEFAULT 0 NOT NULL,
    partial JSON,
    budget_tokens BIGINT,
    budget_micros BIGINT,
    used_calls BIGINT DEFAULT 0 NOT NULL,
    used_input BIGINT DEFAULT 0 NOT NULL,
    used_output BIGINT DEFAULT 0 NOT NULL,
    used_cache_read BIGINT DEFAULT 0 NOT NULL,
    used_cache_write BIGINT DEFAULT 0 NOT NULL,
    used_reasoning BIGINT DEFAULT 0 NOT NULL,
    used_micros BIGINT DEFAULT 0 NOT NULL,
    used_unpriced BIGINT DEFAULT 0 NOT NULL,
    used_ms BIGINT DEFAULT 0 NOT NULL,
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
    CONSTRAINT chats_action_known CHECK (action IS NULL OR action IN ('budget', 'calls')),
    CONSTRAINT chats_title_source_known CHECK (title_source IN ('model', 'user', 'words')),
    CONSTRAINT chats_budgets CHECK (budget_tokens >= 0 AND budget_micros >= 0),
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
    CONSTRAINT chats_partial_is_pending CHECK (partial IS NULL OR status = 'pending'),
    CONSTRAINT chats_counts
        CHECK (least(attempt, crashes, dispatches, claims_since_progress) >= 0),
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
CREATE INDEX chats_owner ON rejoinder.chats (owner, id);
CREATE INDEX chats_parked ON rejoinder.chats (deadline) WHERE deadline IS NOT NULL;
CREATE INDEX chats_step ON rejoinder.chats (step_id) WHERE step_id IS NOT NULL;
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
    joined_id UUID,
    announced BOOLEAN DEFAULT false NOT NULL,
    CONSTRAINT turns_pkey PRIMARY KEY (id),
    CONSTRAINT turns_kind_known CHECK (kind IN ('compaction', 'message', 'retry')),
    CONSTRAINT turns_state_known
        CHECK (state IN ('cancelled', 'failed', 'finished', 'interrupted', 'joined', 'open',
            'queued')),
    CONSTRAINT turns_ended_iff_over
        CHECK ((ended_at IS NULL) = (state IN ('open', 'queued', 'joined'))),
    CONSTRAINT turns_error_iff_failed CHECK ((error IS NOT NULL) = (state = 'failed')),
    CONSTRAINT turns_answer_if_finished
        CHECK (answer_id IS NULL OR state IN ('finished', 'interrupted')),
    CONSTRAINT turns_steps CHECK (steps >= 0),
    CONSTRAINT turns_chat_id_fkey
        FOREIGN KEY(chat_id) REFERENCES rejoinder.chats (id) ON DELETE CASCADE
);
CREATE INDEX turns_chat ON rejoinder.turns (chat_id, id);
CREATE INDEX turns_joined ON rejoinder.turns (joined_id) WHERE state = 'joined';
CREATE UNIQUE INDEX turns_open ON rejoinder.turns (chat_id) WHERE state = 'open';
CREATE INDEX turns_unannounced ON rejoinder.turns (ended_at)
    WHERE ended_at IS NOT NULL AND NOT announced;
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
    stop_reason TEXT,
    request_id TEXT,
    cost_micros BIGINT,
    created_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT messages_pkey PRIMARY KEY (chat_id, id),
    CONSTRAINT messages_role_known CHECK (role IN ('assistant', 'system', 'tool', 'user')),
    CONSTRAINT messages_visibility_known CHECK (visibility IN ('both', 'model', 'user')),
    CONSTRAINT messages_tokens
        CHECK (least(input_tokens, output_tokens, cache_read_tokens, cache_write_tokens,
            reasoning_tokens, context_limit, runtime_ms) >= 0),
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
    steer BOOLEAN DEFAULT false NOT NULL,
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
    approval VARCHAR(32),
    note TEXT,
    patience DOUBLE PRECISION,
    deadline timestamptz,
    default_answer JSON,
    waits_for UUID[],
    sent BOOLEAN DEFAULT false NOT NULL,
    created_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    started_at timestamptz,
    ended_at timestamptz,
    CONSTRAINT tool_calls_pkey PRIMARY KEY (id),
    CONSTRAINT tool_calls_kind_known
        CHECK (kind IN ('children', 'client', 'external', 'local')),
    CONSTRAINT tool_calls_approval_known
        CHECK (approval IS NULL OR approval IN ('granted', 'wanted')),
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
CREATE INDEX tool_calls_outside ON rejoinder.tool_calls (id)
    WHERE kind = 'external' AND NOT settled;
CREATE TABLE rejoinder.steps (
    chat_id UUID NOT NULL,
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    turn_id UUID,
    task_id UUID,
    worker TEXT NOT NULL,
    attempt SMALLINT NOT NULL,
    outcome TEXT NOT NULL,
    began_at timestamptz NOT NULL,
    ended_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    claim_ms DOUBLE PRECISION,
    load_ms DOUBLE PRECISION,
    model_ms DOUBLE PRECISION,
    tools_ms DOUBLE PRECISION,
    write_ms DOUBLE PRECISION,
    input_tokens INTEGER,
    output_tokens INTEGER,
    CONSTRAINT steps_pkey PRIMARY KEY (chat_id, id),
    CONSTRAINT steps_chat_id_fkey FOREIGN KEY (chat_id)
        REFERENCES rejoinder.chats (id) ON DELETE CASCADE
);
CREATE TABLE rejoinder.idempotency_keys (
    owner TEXT NOT NULL,
    key TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    chat_id UUID NOT NULL,
    turn_id UUID,
    receipt JSON,
    created_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT idempotency_keys_pkey PRIMARY KEY (owner, key),
    CONSTRAINT idempotency_keys_chat_id_fkey
        FOREIGN KEY(chat_id) REFERENCES rejoinder.chats (id) ON DELETE CASCADE
        DEFERRABLE INITIALLY DEFERRED
);
CREATE INDEX idempotency_keys_chat ON rejoinder.idempotency_keys (chat_id);
CREATE INDEX idempotency_keys_age ON rejoinder.idempotency_keys (created_at);
CREATE TABLE rejoinder.sweeps (
    name TEXT NOT NULL,
    swept_at timestamptz DEFAULT now() NOT NULL,
    CONSTRAINT sweeps_pkey PRIMARY KEY (name)
);
INSERT INTO rejoinder.sweeps (name) VALUES ('sweep');
ALTER TABLE rejoinder.chats
    ADD CONSTRAINT chats_turn_id_fkey FOREIGN KEY(turn_id) REFERENCES rejoinder.turns (id)
    DEFERRABLE INITIALLY DEFERRED;
"""
