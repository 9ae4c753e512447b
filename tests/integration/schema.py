"""A database's shape, read from Postgres' own catalog, and two ways to compare shapes.

`differences` is for shapes that must be the same (models and migrations). `breaks` is for deploys,
where the previous release works on the new shape for a while: what it reads must be there, what it
writes must be accepted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import CheckConstraint, text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection, Engine, Table

_COLUMNS = """
    SELECT r.relname AS of, a.attname AS name, format_type(a.atttypid, a.atttypmod) AS type,
           NOT a.attnotnull AS nullable, pg_get_expr(d.adbin, d.adrelid) AS initial,
           a.attidentity AS identity
      FROM pg_attribute a JOIN pg_class r ON r.oid = a.attrelid AND r.relkind = 'r'
      JOIN pg_namespace n ON n.oid = r.relnamespace
      LEFT JOIN pg_attrdef d ON d.adrelid = r.oid AND d.adnum = a.attnum
     WHERE n.nspname = 'rejoinder' AND r.relname <> 'alembic_version'
       AND a.attnum > 0 AND NOT a.attisdropped
"""
_RULES = """
    SELECT r.relname AS of, c.conname AS name, pg_get_constraintdef(c.oid) AS says,
           c.contype::text IN ('p', 'u') AS is_unique, c.contype::text AS kind,
           ARRAY(SELECT attname::text FROM pg_attribute
                  WHERE attrelid = r.oid AND attnum = ANY (c.conkey)) AS columns
      FROM pg_constraint c JOIN pg_class r ON r.oid = c.conrelid
      JOIN pg_namespace n ON n.oid = r.relnamespace
     WHERE n.nspname = 'rejoinder' AND r.relname <> 'alembic_version'
       AND c.contype::text IN ('c', 'f', 'p', 'u', 'x')
"""
_INDEXES = """
    SELECT r.relname AS of, i.relname AS name, pg_get_indexdef(i.oid) AS says,
           x.indisunique AS is_unique, 'index' AS kind,
           ARRAY(SELECT attname::text FROM pg_attribute
                  WHERE attrelid = r.oid AND attnum = ANY (x.indkey::smallint[])) AS columns
      FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_class r ON r.oid = x.indrelid
      JOIN pg_namespace n ON n.oid = r.relnamespace
     WHERE n.nspname = 'rejoinder' AND r.relname <> 'alembic_version'
"""


@dataclass(frozen=True)
class Column:
    type: str
    nullable: bool
    initial: str | None
    identity: str


@dataclass(frozen=True)
class Rule:
    """A constraint or an index."""

    says: str
    is_unique: bool
    kind: str
    columns: frozenset[str]


@dataclass(frozen=True)
class Shape:
    """All tables of one database; names are (table, name)."""

    columns: dict[tuple[str, str], Column]
    rules: dict[tuple[str, str], Rule]
    indexes: dict[tuple[str, str], Rule]

    @property
    def tables(self) -> set[str]:
        return {table for table, _ in self.columns}


def read(engine: Engine) -> Shape:
    """The shape of a database, without Alembic's own table."""
    with engine.connect() as connection:
        columns = {name: Column(**values) for name, values in _rows(connection, _COLUMNS)}
        indexes = _rules(connection, _INDEXES)
        rules = _rules(connection, _RULES)
    return Shape(columns, rules, indexes)


def checks(table: Table) -> dict[str, str]:
    """The conditions that a table's rows fulfil, by the names of their CHECKs."""
    return {
        str(rule.name): str(rule.sqltext)
        for rule in table.constraints
        if isinstance(rule, CheckConstraint)
    }


def _rows(connection: Connection, query: str) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
    for row in connection.execute(text(query)).mappings():
        values = dict(row)
        yield (values.pop("of"), values.pop("name")), values


def _rules(connection: Connection, query: str) -> dict[tuple[str, str], Rule]:
    return {
        name: Rule(**{**values, "columns": frozenset(values["columns"])})
        for name, values in _rows(connection, query)
    }


def differences(one: Shape, other: Shape) -> list[str]:
    """Every way in which two shapes differ."""
    return [
        f"{kind} {'.'.join(name)}: {mine.get(name)} / {theirs.get(name)}"
        for kind, mine, theirs in (
            ("column", one.columns, other.columns),
            ("rule", one.rules, other.rules),
            ("index", one.indexes, other.indexes),
        )
        for name in sorted({*mine, *theirs})
        if mine.get(name) != theirs.get(name)
    ]


def breaks(old: Shape, new: Shape, *, looser: frozenset[str] = frozenset()) -> list[str]:
    """What a release that was made for the old shape could trip over in the new one.

    `looser` names CHECKs that were replaced by ones which accept more: that cannot be seen here.
    """
    return [*_lost(old, new), *_stricter(old, new, looser), *_new_columns(old, new)]


def _lost(old: Shape, new: Shape) -> Iterator[str]:
    for (table, name), column in old.columns.items():
        now = new.columns.get((table, name))
        if now is None:
            yield f"{table}.{name} is gone"
            continue
        if now.type != column.type:
            yield f"{table}.{name} was {column.type}, is {now.type}"
        if column.nullable and not now.nullable:
            yield f"{table}.{name} may no longer be null"
        if column.initial is not None and now.initial is None:
            yield f"{table}.{name} has lost its default"
        if column.identity != now.identity:
            yield f"{table}.{name} is numbered differently"
    for table, name in old.indexes:
        index = new.indexes.get((table, name))
        if old.indexes[table, name].is_unique and index != old.indexes[table, name]:
            yield f"{name} is gone or another: ON CONFLICT may need it"


def _stricter(old: Shape, new: Shape, looser: frozenset[str]) -> Iterator[str]:
    """New rules about what the old release writes: on old tables, with any of their old columns."""
    for before, now in ((old.rules, new.rules), (old.indexes, new.indexes)):
        for (table, name), rule in now.items():
            if table not in old.tables or rule == before.get((table, name)) or name in looser:
                continue
            demands = rule.kind != "index" or rule.is_unique
            of_new_columns = rule.columns and not any(
                (table, column) in old.columns for column in rule.columns
            )
            if demands and not of_new_columns:
                yield f"{table} has a new rule, {name}: {rule.says}"


def _new_columns(old: Shape, new: Shape) -> Iterator[str]:
    for (table, name), column in new.columns.items():
        if table in old.tables and (table, name) not in old.columns:
            filled = column.nullable or column.initial is not None or column.identity
            if not filled:
                yield f"{table}.{name} is new and the old release does not fill it"
