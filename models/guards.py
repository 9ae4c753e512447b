"""What one row can say, kept by one function per table.

Tables declare conditions with names, as CHECKs. Postgres gets all those of a table as one CHECK
that calls one function: it reads every CHECK anew for each statement, but a function once per
session (docs/adr/0012). A row that breaks a condition is refused with that condition's name, as by
a CHECK of its own. How a database got its guards is `migrations/`; the two are compared by a test.
"""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum

from sqlalchemy import CheckConstraint, Column, Connection, MetaData, Table, event, text
from sqlalchemy.dialects import postgresql

from models.base import SCHEMA, Base


def one_of(column: str, values: type[StrEnum] | frozenset[StrEnum] | set[StrEnum]) -> str:
    """The condition that a column holds one of these words."""
    return f"{column} IN ({', '.join(repr(str(value)) for value in sorted(values))})"


def check(name: str, condition: str) -> CheckConstraint:
    """A condition with a name, for the table's guard: Postgres gets no CHECK for it alone."""
    return CheckConstraint(condition, name=name).ddl_if(callable_=lambda *_, **__: False)


def conditions(table: Table) -> dict[str, str]:
    """What a row of this table has to fulfil, in the order in which Postgres looks at CHECKs."""
    declared = {
        str(rule.name): str(rule.sqltext)
        for rule in table.constraints
        if isinstance(rule, CheckConstraint)
    }
    return dict(sorted(declared.items()))


def function(table: Table, says: Mapping[str, str]) -> str:
    """The SQL that creates or replaces a table's guard, for these conditions.

    One expression while all is well: only a row that is refused is looked at again, for the name.
    AND and NOT treat NULL as a CHECK does: what is unknown passes.
    """
    kind = postgresql.dialect()  # type: ignore[no-untyped-call]
    takes = ", ".join(f"{each.name} {each.type.compile(kind)}" for each in _columns(table))
    holds = "\n        AND ".join(f"({condition})" for condition in says.values())
    names = "\n            ".join(
        f"WHEN NOT ({condition}) THEN '{name}'" for name, condition in says.items()
    )
    return f"""\
CREATE OR REPLACE FUNCTION {SCHEMA}.{table.name}_guard({takes})
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
            MESSAGE = 'new row for relation "{table.name}" violates check constraint "'
                || broken || '"',
            SCHEMA = '{SCHEMA}', TABLE = '{table.name}', CONSTRAINT = broken;
    END;
END $guard$"""


def constraint(table: Table) -> str:
    """The SQL that has Postgres ask the guard about every row, and about those that are there."""
    guard = f"{table.name}_guard"
    given = ", ".join(each.name for each in _columns(table))
    return (
        f"ALTER TABLE {SCHEMA}.{table.name}"
        f" ADD CONSTRAINT {guard} CHECK ({SCHEMA}.{guard}({given}))"
    )


def _columns(table: Table) -> Sequence[Column[object]]:
    """The columns that the conditions speak of; a guard that saw whole rows would unpack them."""
    spoken = re.sub(r"'[^']*'", "", " ".join(conditions(table).values()))
    names = set(re.findall(r"\w+", spoken))
    return [column for column in table.columns if column.name in names]


@event.listens_for(Base.metadata, "after_create")
def _install(_: MetaData, connection: Connection, tables: Sequence[Table], **__: object) -> None:
    for table in tables:
        if says := conditions(table):
            connection.execute(text(function(table, says)))
            connection.execute(text(constraint(table)))
