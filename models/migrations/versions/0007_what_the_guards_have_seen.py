"""The guards look at the rows that were there before them."""

from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Read the tables once. Nobody waits for that: rows are written and read meanwhile."""
    op.execute("""
        ALTER TABLE rejoinder.chats VALIDATE CONSTRAINT chats_guard;
        ALTER TABLE rejoinder.turns VALIDATE CONSTRAINT turns_guard;
        ALTER TABLE rejoinder.messages VALIDATE CONSTRAINT messages_guard;
        ALTER TABLE rejoinder.tool_calls VALIDATE CONSTRAINT tool_calls_guard;
    """)


def downgrade() -> None:
    """Forget it: the same guards, for new rows only."""
    op.execute("""
        DO $$
        DECLARE
            name text;
            says text;
        BEGIN
            FOREACH name IN ARRAY '{chats,turns,messages,tool_calls}'::text[] LOOP
                SELECT pg_get_constraintdef(oid) INTO STRICT says FROM pg_constraint
                 WHERE conrelid = ('rejoinder.' || name)::regclass AND conname = name || '_guard';
                EXECUTE 'ALTER TABLE rejoinder.' || name || ' DROP CONSTRAINT ' || name
                    || '_guard, ADD CONSTRAINT ' || name || '_guard ' || says || ' NOT VALID';
            END LOOP;
        END $$
    """)
