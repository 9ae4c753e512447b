"""Which step has the chat, so that a revoked task is found."""

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Only adds: the previous release does not look at the column."""
    op.execute("""
        ALTER TABLE rejoinder.chats ADD COLUMN step_id UUID;
        CREATE INDEX chats_step ON rejoinder.chats (step_id) WHERE step_id IS NOT NULL;
    """)


def downgrade() -> None:
    """Remove it again."""
    op.execute("ALTER TABLE rejoinder.chats DROP COLUMN step_id")
