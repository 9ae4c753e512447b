"""Why the model stopped, the request's id, an owner's chats, and turns nobody was told of."""

from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Only adds: the previous release does not look at these columns."""
    op.execute("""
        ALTER TABLE rejoinder.messages ADD COLUMN stop_reason TEXT, ADD COLUMN request_id TEXT;
        CREATE INDEX chats_owner ON rejoinder.chats (owner, id);
        ALTER TABLE rejoinder.turns ADD COLUMN announced BOOLEAN DEFAULT false NOT NULL;
        CREATE INDEX turns_unannounced ON rejoinder.turns (ended_at)
            WHERE ended_at IS NOT NULL AND NOT announced;
    """)


def downgrade() -> None:
    """Remove them again."""
    op.execute("""
        DROP INDEX rejoinder.turns_unannounced;
        ALTER TABLE rejoinder.turns DROP COLUMN announced;
        DROP INDEX rejoinder.chats_owner;
        ALTER TABLE rejoinder.messages DROP COLUMN stop_reason, DROP COLUMN request_id;
    """)
