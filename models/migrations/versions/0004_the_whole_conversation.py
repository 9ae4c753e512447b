"""Steering, approvals, other apps' tasks, children, titles, what was used and what may be."""

from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Only adds columns that the previous release does not look at, and widens three CHECKs."""
    op.execute("""
        ALTER TABLE rejoinder.chats
            ADD COLUMN title TEXT DEFAULT '' NOT NULL,
            ADD COLUMN title_source VARCHAR(32) DEFAULT 'words' NOT NULL,
            ADD COLUMN action VARCHAR(32),
            ADD COLUMN budget_tokens BIGINT,
            ADD COLUMN budget_micros BIGINT,
            ADD COLUMN used_calls BIGINT DEFAULT 0 NOT NULL,
            ADD COLUMN used_input BIGINT DEFAULT 0 NOT NULL,
            ADD COLUMN used_output BIGINT DEFAULT 0 NOT NULL,
            ADD COLUMN used_cache_read BIGINT DEFAULT 0 NOT NULL,
            ADD COLUMN used_cache_write BIGINT DEFAULT 0 NOT NULL,
            ADD COLUMN used_reasoning BIGINT DEFAULT 0 NOT NULL,
            ADD COLUMN used_micros BIGINT DEFAULT 0 NOT NULL,
            ADD COLUMN used_unpriced BIGINT DEFAULT 0 NOT NULL,
            ADD COLUMN used_ms BIGINT DEFAULT 0 NOT NULL,
            ADD CONSTRAINT chats_action_known
                CHECK (action IS NULL OR action IN ('budget', 'calls')),
            ADD CONSTRAINT chats_title_source_known
                CHECK (title_source IN ('model', 'user', 'words')),
            ADD CONSTRAINT chats_budgets CHECK (budget_tokens >= 0 AND budget_micros >= 0);
        ALTER TABLE rejoinder.turns
            ADD COLUMN joined_id UUID,
            DROP CONSTRAINT turns_state_known,
            ADD CONSTRAINT turns_state_known CHECK (state IN
                ('cancelled', 'failed', 'finished', 'interrupted', 'joined', 'open', 'queued')),
            DROP CONSTRAINT turns_ended_iff_over,
            ADD CONSTRAINT turns_ended_iff_over
                CHECK ((ended_at IS NULL) = (state IN ('open', 'queued', 'joined')));
        CREATE INDEX turns_joined ON rejoinder.turns (joined_id) WHERE state = 'joined';
        ALTER TABLE rejoinder.messages ADD COLUMN cost_micros BIGINT;
        ALTER TABLE rejoinder.queued_messages ADD COLUMN steer BOOLEAN DEFAULT false NOT NULL;
        ALTER TABLE rejoinder.tool_calls
            ADD COLUMN approval VARCHAR(32),
            ADD COLUMN note TEXT,
            ADD COLUMN patience DOUBLE PRECISION,
            ADD COLUMN deadline timestamptz,
            ADD COLUMN default_answer JSON,
            ADD COLUMN waits_for UUID[],
            ADD COLUMN sent BOOLEAN DEFAULT false NOT NULL,
            ADD CONSTRAINT tool_calls_approval_known
                CHECK (approval IS NULL OR approval IN ('granted', 'wanted')),
            DROP CONSTRAINT tool_calls_kind_known,
            ADD CONSTRAINT tool_calls_kind_known
                CHECK (kind IN ('children', 'client', 'external', 'local'));
        CREATE INDEX tool_calls_outside ON rejoinder.tool_calls (id)
            WHERE kind = 'external' AND NOT settled;
    """)


def downgrade() -> None:
    """Remove it again: turns that joined another count as finished, nobody waits for children."""
    op.execute("""
        DROP INDEX rejoinder.tool_calls_outside;
        ALTER TABLE rejoinder.tool_calls
            DROP CONSTRAINT tool_calls_kind_known,
            DROP COLUMN approval, DROP COLUMN note, DROP COLUMN patience, DROP COLUMN deadline,
            DROP COLUMN default_answer, DROP COLUMN waits_for, DROP COLUMN sent;
        UPDATE rejoinder.tool_calls SET kind = 'external' WHERE kind = 'children';
        ALTER TABLE rejoinder.tool_calls ADD CONSTRAINT tool_calls_kind_known
            CHECK (kind IN ('client', 'external', 'local'));
        ALTER TABLE rejoinder.queued_messages DROP COLUMN steer;
        ALTER TABLE rejoinder.messages DROP COLUMN cost_micros;
        UPDATE rejoinder.turns SET state = 'finished', ended_at = now() WHERE state = 'joined';
        DROP INDEX rejoinder.turns_joined;
        ALTER TABLE rejoinder.turns
            DROP COLUMN joined_id,
            DROP CONSTRAINT turns_state_known,
            ADD CONSTRAINT turns_state_known CHECK (state IN
                ('cancelled', 'failed', 'finished', 'interrupted', 'open', 'queued')),
            DROP CONSTRAINT turns_ended_iff_over,
            ADD CONSTRAINT turns_ended_iff_over
                CHECK ((ended_at IS NULL) = (state IN ('open', 'queued')));
        ALTER TABLE rejoinder.chats
            DROP COLUMN title, DROP COLUMN title_source, DROP COLUMN action,
            DROP COLUMN budget_tokens, DROP COLUMN budget_micros,
            DROP COLUMN used_calls, DROP COLUMN used_input, DROP COLUMN used_output,
            DROP COLUMN used_cache_read, DROP COLUMN used_cache_write,
            DROP COLUMN used_reasoning, DROP COLUMN used_micros,
            DROP COLUMN used_unpriced, DROP COLUMN used_ms;
    """)
