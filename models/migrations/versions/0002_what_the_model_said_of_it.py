"""Why the model stopped and the provider's id of the request; an index for an owner's chats."""

from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Only adds: the previous release does not look at these columns."""
    op.execute("""
        ALTER TABLE rejoinder.messages ADD COLUMN stop_reason TEXT, ADD COLUMN request_id TEXT;
        CREATE INDEX chats_owner ON rejoinder.chats (owner, id);
    """)


def downgrade() -> None:
    """Remove them again."""
    op.execute("""
        DROP INDEX rejoinder.chats_owner;
        ALTER TABLE rejoinder.messages DROP COLUMN stop_reason, DROP COLUMN request_id;
    """)
