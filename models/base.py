"""What all tables have in common."""

from enum import StrEnum
from typing import cast

from sqlalchemy import CheckConstraint, MetaData, Table, func
from sqlalchemy.orm import DeclarativeBase

SCHEMA = "rejoinder"

NOW = func.now()
BORN = func.clock_timestamp()  # several rows of one transaction still differ


class Base(DeclarativeBase):
    """All tables live in their own Postgres schema, out of the application's way."""

    metadata = MetaData(
        schema=SCHEMA,
        naming_convention={
            "pk": "%(table_name)s_pkey",
            "fk": "%(table_name)s_%(column_0_name)s_fkey",
            "uq": "%(table_name)s_%(column_0_N_name)s_key",
            "ck": "%(table_name)s_%(constraint_name)s",
        },
    )


def one_of(column: str, values: type[StrEnum] | frozenset[StrEnum] | set[StrEnum]) -> str:
    """The condition that a column holds one of these words."""
    return f"{column} IN ({', '.join(repr(str(value)) for value in sorted(values))})"


def check(name: str, condition: str) -> CheckConstraint:
    """A condition that every row fulfils; Postgres knows it as `<table>_<name>`."""
    return CheckConstraint(condition, name=name)


def table_of(model: type[Base]) -> Table:
    """The table of a model: what is asked of it does not go through the ORM."""
    return cast("Table", model.__table__)
