"""Catches the statements that a piece of code sends, and reads how Postgres would run them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, event

from models.engine import autocommit

BIG_TABLES = frozenset(
    {"chats", "turns", "messages", "queued_messages", "tool_calls", "idempotency_keys"}
)
_NO_PLAN = ("SAVEPOINT", "RELEASE SAVEPOINT", "ROLLBACK TO SAVEPOINT", "PREPARE")
LARGE = 1000
"""Rows beyond which a sort is not a detail."""


@dataclass(frozen=True)
class Caught:
    """A statement as it went to Postgres."""

    sql: str
    parameters: Any


@contextmanager
def watch(engine: Engine) -> Iterator[list[Caught]]:
    """Collect what is sent to this engine meanwhile."""
    caught: list[Caught] = []

    def catch(  # the event's own signature
        _connection: Connection,
        _cursor: object,
        statement: str,
        parameters: Any,
        _context: object,
        executemany: bool,  # noqa: FBT001
    ) -> None:
        if not statement.lstrip().startswith(_NO_PLAN):
            given = parameters[0] if executemany else parameters
            caught.extend(Caught(each, given) for each in statement.split(";") if each.strip())

    both = (engine, autocommit(engine))
    for each in both:
        event.listen(each, "before_cursor_execute", catch)
    try:
        yield caught
    finally:
        for each in both:
            event.remove(each, "before_cursor_execute", catch)


def explain(engine: Engine, statement: Caught) -> dict[str, Any]:
    """Postgres' plan for a statement, which is not run; a prepared one's for any parameters."""
    with autocommit(engine).connect() as connection:  # where it was prepared, if it was
        connection.exec_driver_sql("SET plan_cache_mode = force_generic_plan")
        row = connection.exec_driver_sql(
            f"EXPLAIN (FORMAT JSON) {statement.sql}", statement.parameters
        ).one()
        connection.exec_driver_sql("RESET plan_cache_mode")
    plan: dict[str, Any] = row[0][0]["Plan"]
    return plan


def wrong(plan: dict[str, Any]) -> list[str]:
    """What does not scale in a plan: big tables read whole, large sets sorted."""
    found = []
    for node in nodes(plan):
        if node["Node Type"] == "Seq Scan" and node.get("Relation Name") in BIG_TABLES:
            found.append(f"reads all of {node['Relation Name']}")
        if "Sort" in node["Node Type"] and node["Plan Rows"] > LARGE:
            found.append(f"sorts {node['Plan Rows']} rows")
    return found


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Walk the plan and all below it."""
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)
