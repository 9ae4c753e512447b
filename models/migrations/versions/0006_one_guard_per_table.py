"""One guard per table in place of its many CHECKs, which Postgres read anew for each statement.

In SQL, and complete: what the code says of its guards later does not change what this one did.
"""

from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Swap them in one transaction, so that no moment is unguarded.

    NOT VALID, because the CHECKs that go have kept every row that is there: nothing is read, and
    the tables are locked for milliseconds (0007 looks at the rows, without such a lock). Releases
    name no CHECK, so the previous one does not notice. Chats come first, as in every transition.
    """
    for table, says in SAYS.items():
        op.execute(_function(table, says))
        drops = ", ".join(f"DROP CONSTRAINT {name}" for name in says)
        given = ", ".join(each.split()[0] for each in TAKES[table].split(", "))
        op.execute(f"""
            ALTER TABLE rejoinder.{table} {drops}, ADD CONSTRAINT {table}_guard
                CHECK (rejoinder.{table}_guard({given})) NOT VALID
        """)


def downgrade() -> None:
    """The CHECKs again. Postgres looks at every row while it adds them."""
    for table, says in SAYS.items():
        adds = ", ".join(f"ADD CONSTRAINT {name} CHECK ({rule})" for name, rule in says.items())
        op.execute(f"ALTER TABLE rejoinder.{table} DROP CONSTRAINT {table}_guard, {adds}")
        op.execute(f"DROP FUNCTION rejoinder.{table}_guard")


def _function(table: str, says: dict[str, str]) -> str:
    holds = "\n        AND ".join(f"({rule})" for rule in says.values())
    names = "\n            ".join(f"WHEN NOT ({rule}) THEN '{name}'" for name, rule in says.items())
    return f"""
CREATE FUNCTION rejoinder.{table}_guard({TAKES[table]})
RETURNS boolean LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $guard$
BEGIN
    IF (
        {holds}
    ) IS NOT FALSE THEN
        RETURN true;
    END IF;
    DECLARE
        broken CONSTANT text := CASE
            {names}
        END;
    BEGIN
        RAISE check_violation USING
            MESSAGE = 'new row for relation "{table}" violates check constraint "'
                || broken || '"',
            SCHEMA = 'rejoinder', TABLE = '{table}', CONSTRAINT = broken;
    END;
END $guard$"""


TAKES = {
    "chats": (
        "id UUID, owner TEXT, parent_id UUID, root_id UUID, title_source VARCHAR, status VARCHAR, "
        "archived BOOLEAN, turn_id UUID, lease_id UUID, worker_id UUID, deadline TIMESTAMPTZ, "
        "last_error JSON, action VARCHAR, queue_length SMALLINT, woken BOOLEAN, "
        "run_after TIMESTAMPTZ, dispatches INTEGER, redispatch_at TIMESTAMPTZ, attempt SMALLINT, "
        "retry_state JSON, crashes SMALLINT, budget_tokens BIGINT, budget_micros BIGINT, "
        "snapshot_version BIGINT, history_version BIGINT, queue_version BIGINT"
    ),
    "turns": (
        "kind VARCHAR, state VARCHAR, answer_id BIGINT, error JSON, steps INTEGER, "
        "ended_at TIMESTAMPTZ"
    ),
    "messages": (
        "role VARCHAR, visibility VARCHAR, input_tokens INTEGER, output_tokens INTEGER, "
        "cache_read_tokens INTEGER, cache_write_tokens INTEGER, reasoning_tokens INTEGER, "
        "context_limit INTEGER, runtime_ms INTEGER"
    ),
    "tool_calls": (
        "kind VARCHAR, delivery VARCHAR, state VARCHAR, result JSON, settled BOOLEAN, "
        "approval VARCHAR, started_at TIMESTAMPTZ, ended_at TIMESTAMPTZ"
    ),
}

SAYS = {
    "chats": {
        "chats_action_known": "action IS NULL OR action IN ('budget', 'calls')",
        "chats_archived_at_rest": "NOT archived OR status IN ('error', 'waiting')",
        "chats_attempt_is_busy": "attempt = 0 OR NOT (status IN ('error', 'waiting'))",
        "chats_budgets": "budget_tokens >= 0 AND budget_micros >= 0",
        "chats_counts": "attempt >= 0 AND crashes >= 0 AND dispatches >= 0",
        "chats_deadline_iff_parked": (
            "(deadline IS NOT NULL) = (status IN ('requires_action', 'sleeping'))"
        ),
        "chats_error_iff_error": "(last_error IS NOT NULL) = (status = 'error')",
        "chats_error_is_object": "last_error IS NULL OR json_typeof(last_error) = 'object'",
        "chats_lease_iff_owned": "(lease_id IS NOT NULL) = (status IN ('interrupting', 'running'))",
        "chats_owner_given": "owner <> ''",
        "chats_owner_iff_lease": "(worker_id IS NULL) = (lease_id IS NULL)",
        "chats_queue_bounded": "queue_length BETWEEN 0 AND 20",
        "chats_redispatch_iff_pending": "(redispatch_at IS NOT NULL) = (status = 'pending')",
        "chats_retry_iff_attempt": "(retry_state IS NOT NULL) = (attempt > 0)",
        "chats_root_of_itself": "(parent_id IS NULL) = (root_id = id)",
        "chats_run_after_is_pending": "run_after IS NULL OR status = 'pending'",
        "chats_status_known": (
            "status IN ('error', 'interrupting', 'pending', 'requires_action', 'running', "
            "'sleeping', 'waiting')"
        ),
        "chats_title_source_known": "title_source IN ('model', 'user', 'words')",
        "chats_turn_iff_busy": "(turn_id IS NULL) = (status IN ('error', 'waiting'))",
        "chats_versions": (
            "history_version BETWEEN 1 AND snapshot_version AND "
            "queue_version BETWEEN 1 AND snapshot_version"
        ),
        "chats_waiting_has_no_queue": "status <> 'waiting' OR queue_length = 0",
        "chats_woken_is_awake": "NOT woken OR NOT (status IN ('error', 'sleeping', 'waiting'))",
    },
    "turns": {
        "turns_answer_if_finished": "answer_id IS NULL OR state IN ('finished', 'interrupted')",
        "turns_ended_iff_over": "(ended_at IS NULL) = (state IN ('open', 'queued', 'joined'))",
        "turns_error_iff_failed": "(error IS NOT NULL) = (state = 'failed')",
        "turns_kind_known": "kind IN ('compaction', 'message', 'retry')",
        "turns_state_known": (
            "state IN ('cancelled', 'failed', 'finished', 'interrupted', 'joined', 'open', "
            "'queued')"
        ),
        "turns_steps": "steps >= 0",
    },
    "messages": {
        "messages_role_known": "role IN ('assistant', 'system', 'tool', 'user')",
        "messages_tokens": (
            "(input_tokens IS NULL OR input_tokens >= 0) AND "
            "(output_tokens IS NULL OR output_tokens >= 0) AND "
            "(cache_read_tokens IS NULL OR cache_read_tokens >= 0) AND "
            "(cache_write_tokens IS NULL OR cache_write_tokens >= 0) AND "
            "(reasoning_tokens IS NULL OR reasoning_tokens >= 0) AND "
            "(context_limit IS NULL OR context_limit >= 0) AND "
            "(runtime_ms IS NULL OR runtime_ms >= 0)"
        ),
        "messages_visibility_known": "visibility IN ('both', 'model', 'user')",
    },
    "tool_calls": {
        "tool_calls_approval_known": "approval IS NULL OR approval IN ('granted', 'wanted')",
        "tool_calls_delivery_known": "delivery IN ('idempotent', 'once')",
        "tool_calls_ended_iff_answered": (
            "(ended_at IS NOT NULL) = (state IN ('finished', 'unknown'))"
        ),
        "tool_calls_kind_known": "kind IN ('children', 'client', 'external', 'local')",
        "tool_calls_result_iff_answered": (
            "(result IS NOT NULL) = (state IN ('finished', 'unknown'))"
        ),
        "tool_calls_settled_is_answered": "NOT settled OR state IN ('finished', 'unknown')",
        "tool_calls_started_has_time": "state <> 'started' OR started_at IS NOT NULL",
        "tool_calls_state_known": "state IN ('finished', 'requested', 'started', 'unknown')",
    },
}
