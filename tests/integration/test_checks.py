"""Every CHECK refuses the row that it is there to refuse, and no other would.

A case is SQL that breaks one CHECK of an otherwise legal row: Postgres names that one, and with it
dropped, the same SQL goes through. A CHECK without a case fails here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg2.errors
import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from models.base import Base
from rejoinder.core.state import Status
from tests.chats import World
from tests.integration.schema import checks

if TYPE_CHECKING:
    from sqlalchemy import Engine

P, R, W = Status.PENDING, Status.RUNNING, Status.WAITING
A = Status.REQUIRES_ACTION
SET = "UPDATE rejoinder.{} SET "
THE_WORKER = "(SELECT id FROM rejoinder.workers)"
NEGATIVE = (
    "input_tokens",
    "output_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "reasoning_tokens",
    "context_limit",
    "runtime_ms",
)

CASES: dict[str, list[tuple[Status, str]]] = {
    "chats_status_known": [(P, "status = 'dozing', redispatch_at = NULL")],
    "chats_lease_iff_owned": [
        (P, f"lease_id = gen_random_uuid(), worker_id = {THE_WORKER}"),
        (R, "lease_id = NULL, worker_id = NULL"),
    ],
    "chats_owner_iff_lease": [(R, "worker_id = NULL"), (P, f"worker_id = {THE_WORKER}")],
    "chats_error_iff_error": [(W, "last_error = '{}'"), (Status.ERROR, "last_error = NULL")],
    "chats_deadline_iff_parked": [(P, "deadline = now()"), (A, "deadline = NULL")],
    "chats_turn_iff_busy": [
        (P, "turn_id = NULL"),
        (W, "turn_id = (SELECT id FROM rejoinder.turns)"),
    ],
    "chats_archived_at_rest": [(P, "archived = true"), (A, "archived = true")],
    "chats_queue_bounded": [(R, "queue_length = 21"), (R, "queue_length = -1")],
    "chats_waiting_has_no_queue": [(W, "queue_length = 1")],
    "chats_redispatch_iff_pending": [(P, "redispatch_at = NULL"), (R, "redispatch_at = now()")],
    "chats_run_after_is_pending": [(R, "run_after = now()")],
    "chats_woken_is_awake": [(W, "woken = true"), (Status.SLEEPING, "woken = true")],
    "chats_retry_iff_attempt": [(P, "retry_state = '{}'"), (P, "attempt = 1")],
    "chats_attempt_is_busy": [(W, "attempt = 1, retry_state = '{}'")],
    "chats_error_is_object": [(Status.ERROR, "last_error = 'null'")],
    "chats_counts": [
        (R, f"{column} = -1")
        for column in ("crashes", "attempt", "dispatches", "claims_since_progress")
    ],
    "chats_partial_is_pending": [(R, "partial = '{}'"), (W, "partial = '{}'")],
    "chats_versions": [
        (P, "history_version = snapshot_version + 1"),
        (P, "queue_version = snapshot_version + 1"),
        (P, "history_version = 0"),
        (P, "queue_version = 0"),
    ],
    "chats_root_of_itself": [(W, "parent_id = id")],
    "chats_owner_given": [(W, "owner = ''")],
    "chats_action_known": [(A, "action = 'odd'")],
    "chats_title_source_known": [(W, "title_source = 'odd'")],
    "chats_budgets": [(W, "budget_tokens = -1"), (W, "budget_micros = -1")],
    "turns_kind_known": [(P, "kind = 'odd'")],
    "turns_state_known": [(W, "state = 'odd', answer_id = NULL")],
    "turns_ended_iff_over": [(P, "ended_at = now()"), (W, "ended_at = NULL")],
    "turns_error_iff_failed": [(W, "error = '{}'"), (Status.ERROR, "error = NULL")],
    "turns_answer_if_finished": [(P, "answer_id = 1")],
    "turns_steps": [(P, "steps = -1")],
    "messages_role_known": [(P, "role = 'ghost'")],
    "messages_visibility_known": [(P, "visibility = 'nobody'")],
    "messages_tokens": [(P, f"{column} = -1") for column in NEGATIVE],
    "tool_calls_kind_known": [(A, "kind = 'odd'")],
    "tool_calls_approval_known": [(A, "approval = 'odd'")],
    "tool_calls_delivery_known": [(A, "delivery = 'twice'")],
    "tool_calls_state_known": [(A, "state = 'odd'")],
    "tool_calls_result_iff_answered": [
        (A, "result = '{}'"),
        (A, "state = 'finished', ended_at = now()"),
    ],
    "tool_calls_settled_is_answered": [(A, "settled = true")],
    "tool_calls_ended_iff_answered": [
        (A, "ended_at = now()"),
        (A, "state = 'unknown', result = '{}'"),
    ],
    "tool_calls_started_has_time": [(A, "state = 'started'")],
}
TABLES = {table.name: table for table in Base.metadata.tables.values()}
FLAT = [(name, *case) for name, cases in CASES.items() for case in cases]


@pytest.fixture
def world(engine: Engine) -> World:
    return World(engine)


def test_every_check_has_a_case() -> None:
    assert set(CASES) == {name for table in TABLES.values() for name in checks(table)}


@pytest.mark.parametrize(("name", "status", "change"), FLAT, ids=[f"{n}: {c}" for n, _, c in FLAT])
def test_a_check_refuses_what_it_is_there_for(
    world: World, name: str, status: Status, change: str
) -> None:
    world.chat(status)
    table = next(table for table in TABLES.values() if name in checks(table))
    statement = text(SET.format(table.name) + change)
    with pytest.raises(IntegrityError) as violation, world.engine.begin() as connection:
        connection.execute(statement)
    error = violation.value.orig
    assert isinstance(error, psycopg2.errors.CheckViolation)
    assert error.diag.constraint_name == name
    with world.engine.begin() as connection:
        connection.execute(text(f"ALTER TABLE rejoinder.{table.name} DROP CONSTRAINT {name}"))
        assert connection.execute(statement).rowcount > 0
        connection.rollback()
