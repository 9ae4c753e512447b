"""One writer: rules about who may write a chat's state, read from the source itself.

They hold for everything in `models` and `tasks`; the machine and the claim are the
only places where a status, a version or a lease is written.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from models import machine
from rejoinder.core.state import Transition

ROOT = Path(__file__).parent.parent.parent
ROOMS = ("models", "tasks")  # `rejoinder` cannot reach a row: the import rules see to that
GUARDED = {
    "status",
    "lease_id",
    "worker_id",
    "snapshot_version",
    "history_version",
    "queue_version",
    "queue_length",
    "turn_id",
    "archived",
}
WRITERS = {"models/machine", "models/claims.py"}
TABLES = ("chats", "messages", "turns", "tool_calls", "queued_messages")


def sources() -> Iterator[tuple[str, str]]:
    """Every module of the rooms: its path from the root, and its text."""
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def outsiders() -> Iterator[tuple[str, str]]:
    """Modules that may not write a chat's state."""
    for name, source in sources():
        if not any(name.startswith(writer) for writer in WRITERS) and "migrations" not in name:
            yield name, source


def assigned(source: str) -> Iterator[str]:
    """Names of attributes that a module assigns to, `self` apart."""
    for node in ast.walk(ast.parse(source)):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            for inner in ast.walk(target):
                if isinstance(inner, ast.Attribute) and not _is_self(inner.value):
                    yield inner.attr


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def sql_writes(source: str) -> Iterator[str]:
    """SQL in strings that writes to a chat's tables."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = node.value.upper()
            for table in TABLES:
                for verb in ("UPDATE", "INSERT INTO", "DELETE FROM"):
                    if f"{verb} REJOINDER.{table.upper()}" in words:
                        yield f"{verb} {table}"


def test_only_the_machine_assigns_a_chats_state() -> None:
    offenders = [
        f"{name} assigns .{attribute}"
        for name, source in outsiders()
        for attribute in assigned(source)
        if attribute in GUARDED
    ]
    assert offenders == []


def test_only_the_machine_and_the_claims_write_sql_to_a_chats_tables() -> None:
    offenders = [f"{name}: {write}" for name, source in outsiders() for write in sql_writes(source)]
    assert offenders == []


def test_only_change_to_assigns_the_status() -> None:
    writers = {name for name, source in sources() if "status" in assigned(source)}
    assert writers == {"models/machine/change.py"}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("chat.status = 1", True),
        ("chat.lease_id = chat.worker_id = None", True),
        ("chat.queue_length += 1", True),
        ("(chat.status, x) = 1, 2", True),
        ("self.status = 1", False),
        ("x = chat.status", False),
    ],
)
def test_the_rule_sees_assignments(source: str, found: bool) -> None:  # noqa: FBT001
    assert bool(GUARDED & set(assigned(source))) is found


def test_every_transition_has_its_function() -> None:
    functions = {name.split(" ")[0] for name in Transition} - {Transition.CLAIM}
    assert functions <= set(machine.__all__)


def test_no_module_of_the_models_talks_to_the_broker() -> None:
    for name, source in sources():
        if not name.startswith("models/"):
            continue
        imported = {
            (getattr(node, "module", None) or node.names[0].name).split(".")[0]
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Import | ast.ImportFrom)
        }
        assert not imported & {"celery", "kombu", "redis", "tasks"}, name
