"""Migrations: up, down and up again, the same shape as the models, and safe during a deploy.

The rule for deploys: the previous release keeps working on the new schema. So whatever a migration
after `RELEASED` does is held against that release's schema here.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import TYPE_CHECKING

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import text

from models import machine
from models.base import Base
from models.machine import NewChat
from models.migrate import RELEASED, config_for, downgrade, upgrade
from tests.chats import World, said, words
from tests.integration import schema

if TYPE_CHECKING:
    from sqlalchemy import Engine

LOOSER: frozenset[str] = frozenset()
"""CHECKs that a migration after RELEASED replaced by a wider one, each with a word on why."""

OBJECTS = """
    SELECT relname FROM pg_class WHERE relnamespace = 'rejoinder'::regnamespace
    UNION ALL SELECT proname FROM pg_proc WHERE pronamespace = 'rejoinder'::regnamespace
    UNION ALL SELECT typname FROM pg_type WHERE typnamespace = 'rejoinder'::regnamespace
"""
CHATS = "ALTER TABLE rejoinder.chats"


def replaced(name: str, condition: str) -> str:
    """The SQL for another condition in place of one of the chats' CHECKs."""
    return f"{CHATS} DROP CONSTRAINT {name}, ADD CONSTRAINT {name} CHECK ({condition})"


BAD = {
    "a dropped table": "DROP TABLE rejoinder.idempotency_keys",
    "a renamed table": "ALTER TABLE rejoinder.turns RENAME TO rounds",
    "a dropped column": f"{CHATS} DROP COLUMN labels",
    "a renamed column": f"{CHATS} RENAME COLUMN labels TO tags",
    "another type": f"{CHATS} ALTER COLUMN used_calls TYPE numeric",
    "a shorter type": f"{CHATS} ALTER COLUMN status TYPE varchar(16)",
    "a column that must be filled": f"{CHATS} ADD COLUMN region text NOT NULL",
    "an old column that must be filled": f"{CHATS} ALTER COLUMN parent_id SET NOT NULL",
    "a new CHECK": f"{CHATS} ADD CONSTRAINT brief CHECK (length(owner) < 10)",
    "a new CHECK of old and new": (
        f"{CHATS} ADD COLUMN n int DEFAULT 0, ADD CONSTRAINT c CHECK (n > attempt)"
    ),
    "a stricter CHECK": replaced("chats_owner_given", "length(owner) > 3"),
    "a new unique rule": f"{CHATS} ADD CONSTRAINT one UNIQUE (owner)",
    "a new unique index": "CREATE UNIQUE INDEX one ON rejoinder.chats (owner)",
    "a new unique expression": "CREATE UNIQUE INDEX one ON rejoinder.chats (lower(owner))",
    "a new foreign key": (
        "ALTER TABLE rejoinder.messages ADD FOREIGN KEY (turn_id) REFERENCES rejoinder.turns"
    ),
    "a lost default": f"{CHATS} ALTER COLUMN labels DROP DEFAULT",
    "lost numbers": "ALTER TABLE rejoinder.messages ALTER COLUMN id DROP IDENTITY",
    "a lost unique index": "DROP INDEX rejoinder.turns_open",
    "a lost primary key": (
        "ALTER TABLE rejoinder.idempotency_keys DROP CONSTRAINT idempotency_keys_pkey"
    ),
}
GOOD = {
    "a nullable column": f"{CHATS} ADD COLUMN region text",
    "a column with a default": f"{CHATS} ADD COLUMN region text NOT NULL DEFAULT 'eu'",
    "a numbered column": f"{CHATS} ADD COLUMN n bigint GENERATED ALWAYS AS IDENTITY",
    "a table": "CREATE TABLE rejoinder.notes (id int PRIMARY KEY, chat_id uuid NOT NULL UNIQUE)",
    "an index": "CREATE INDEX by_owner ON rejoinder.chats (owner)",
    "a dropped index": "DROP INDEX rejoinder.chats_children",
    "a dropped CHECK": f"{CHATS} DROP CONSTRAINT chats_counts",
    "another default": f"{CHATS} ALTER COLUMN model SET DEFAULT 'big'",
    "a CHECK of new columns": f"{CHATS} ADD COLUMN n int DEFAULT 0 CHECK (n >= 0)",
    "a unique new column": f"{CHATS} ADD COLUMN n int UNIQUE",
    "a foreign key of a new column": (
        f"{CHATS} ADD COLUMN turn uuid REFERENCES rejoinder.turns ON DELETE CASCADE"
    ),
}
UNLIKE = {
    **BAD,
    **GOOD,
    "a CHECK of new rows only": replaced("chats_owner_given", "owner <> ''") + " NOT VALID",
    "a column that may be empty": f"{CHATS} ALTER COLUMN owner DROP NOT NULL",
    "another foreign key": (
        "ALTER TABLE rejoinder.turns DROP CONSTRAINT turns_chat_id_fkey,"
        " ADD CONSTRAINT turns_chat_id_fkey FOREIGN KEY (chat_id) REFERENCES rejoinder.chats"
    ),
}


def run(engine: Engine, statement: str) -> None:
    with engine.begin() as connection:
        connection.execute(text(statement))


def revisions() -> list[str]:
    """All migrations, oldest first."""
    scripts = ScriptDirectory.from_config(config_for())
    return [script.revision for script in scripts.walk_revisions()][::-1]


def test_models_and_migrations_agree(database_url: str, engine: Engine) -> None:
    migrated = schema.read(engine)
    downgrade(database_url)
    assert schema.read(engine).tables == set()
    Base.metadata.create_all(engine)
    assert schema.differences(migrated, schema.read(engine)) == []
    assert migrated.tables == {table.name for table in Base.metadata.tables.values()}


@pytest.mark.parametrize("change", UNLIKE)
def test_the_comparison_of_models_and_migrations_notices(engine: Engine, change: str) -> None:
    before = schema.read(engine)
    run(engine, UNLIKE[change])
    assert schema.differences(before, schema.read(engine)) != []


def test_down_leaves_nothing_and_up_again_is_the_same(database_url: str, engine: Engine) -> None:
    before = schema.read(engine)
    World(engine).new()
    downgrade(database_url)
    with engine.connect() as connection:
        left = {name for name in connection.scalars(text(OBJECTS)) if "alembic_version" not in name}
    assert left == set()
    upgrade(database_url)
    assert schema.differences(before, schema.read(engine)) == []
    World(engine).new()


def test_up_is_harmless_when_there_is_nothing_to_do(database_url: str, engine: Engine) -> None:
    world = World(engine)
    world.new()
    before, rows = schema.read(engine), world.dump()
    upgrade(database_url)
    assert (schema.read(engine), world.dump()) == (before, rows)


def test_every_migration_can_be_undone(database_url: str, engine: Engine) -> None:
    downgrade(database_url)
    shapes = {"base": schema.read(engine)}
    for revision in revisions():
        upgrade(database_url, revision)
        shapes[revision] = schema.read(engine)
    for revision in ["base", *revisions()][-2::-1]:
        downgrade(database_url, revision)
        assert schema.differences(shapes[revision], schema.read(engine)) == [], revision


def test_migrations_form_one_line_from_nothing_to_now() -> None:
    scripts = ScriptDirectory.from_config(config_for())
    line = list(scripts.walk_revisions())
    assert len(scripts.get_heads()) == 1
    assert [script.down_revision for script in line] == [
        *(script.revision for script in line[1:]),
        None,
    ]
    for number, script in enumerate(reversed(line), start=1):
        assert script.revision == f"{number:04}"
        assert Path(script.path).name.startswith(f"{script.revision}_")
        assert script.doc
        assert callable(script.module.downgrade)
    assert RELEASED in {script.revision for script in line}


def test_pods_that_migrate_at_once_wait_for_each_other(database_url: str, engine: Engine) -> None:
    before = schema.read(engine)
    run(engine, "DROP SCHEMA rejoinder CASCADE")
    pods = 4
    together = Barrier(pods)

    def migrate() -> None:
        together.wait(timeout=30)
        upgrade(database_url)

    with ThreadPoolExecutor(pods) as pool:
        for done in [pool.submit(migrate) for _ in range(pods)]:
            done.result(timeout=60)
    assert schema.differences(before, schema.read(engine)) == []


def test_the_previous_release_keeps_working_on_the_new_schema(
    database_url: str, engine: Engine
) -> None:
    new = schema.read(engine)
    downgrade(database_url, RELEASED)
    assert schema.breaks(schema.read(engine), new, looser=LOOSER) == []


@pytest.mark.parametrize("change", BAD)
def test_a_change_that_breaks_the_previous_release_is_noticed(engine: Engine, change: str) -> None:
    before = schema.read(engine)
    run(engine, BAD[change])
    assert schema.breaks(before, schema.read(engine)) != []


@pytest.mark.parametrize("change", GOOD)
def test_a_change_that_leaves_the_previous_release_working_is_fine(
    engine: Engine, change: str
) -> None:
    before = schema.read(engine)
    run(engine, GOOD[change])
    assert schema.breaks(before, schema.read(engine)) == []
    world = World(engine)
    effects = world.do(machine.create, NewChat("owner", words("hello")))
    world.do(machine.finish_turn, world.claim(effects.chat_id), message=said("Done."))


def test_a_check_that_was_made_wider_can_be_declared(engine: Engine) -> None:
    before = schema.read(engine)
    run(engine, replaced("chats_owner_given", "owner IS NOT NULL"))
    after = schema.read(engine)
    assert schema.breaks(before, after) != []
    assert schema.breaks(before, after, looser=frozenset({"chats_owner_given"})) == []
