"""What each step took."""

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the table. Rows older than this are not there: nothing depends on them."""
    op.execute("""
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
    """)


def downgrade() -> None:
    """Remove it."""
    op.execute("DROP TABLE rejoinder.steps")
