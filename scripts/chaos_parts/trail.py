"""What the database itself saw: every change of a chat's status or lease, written by a trigger.

The trigger and its table are in a schema of their own, made by the chaos run in its own database.
Within one chat the order of rows is the order of commits, since the writer holds the chat's lock.
"""

from sqlalchemy import Engine, text

_INSTALL = """
CREATE SCHEMA chaos;
CREATE TABLE chaos.trail (
    n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    chat_id uuid NOT NULL,
    turn_id uuid,
    old_status text,
    new_status text NOT NULL,
    old_version bigint,
    new_version bigint NOT NULL,
    old_lease uuid,
    new_lease uuid,
    worker text
);
CREATE FUNCTION chaos.note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos.trail (chat_id, turn_id, old_status, new_status, old_version, new_version,
                             old_lease, new_lease, worker)
    VALUES (NEW.id, NEW.turn_id, OLD.status, NEW.status, OLD.snapshot_version,
            NEW.snapshot_version, OLD.lease_id, NEW.lease_id,
            (SELECT w.name FROM rejoinder.workers w
              WHERE w.id = coalesce(NEW.worker_id, OLD.worker_id)));
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_insert AFTER INSERT ON rejoinder.chats
    FOR EACH ROW EXECUTE FUNCTION chaos.note();
CREATE TRIGGER chaos_update AFTER UPDATE ON rejoinder.chats FOR EACH ROW
    WHEN (OLD.status IS DISTINCT FROM NEW.status OR OLD.lease_id IS DISTINCT FROM NEW.lease_id
          OR OLD.snapshot_version IS DISTINCT FROM NEW.snapshot_version)
    EXECUTE FUNCTION chaos.note();
"""


def install(engine: Engine) -> None:
    """Begin to write the trail."""
    with engine.begin() as connection:
        connection.execute(text(_INSTALL))


def keep_commits(engine: Engine) -> None:
    """Let a commit reach the system before it is acknowledged: a killed Postgres loses none."""
    with engine.begin() as connection:
        name = connection.execute(text("SELECT current_database()")).scalar_one()
        connection.execute(text(f'ALTER DATABASE "{name}" SET synchronous_commit = on'))
