"""What all tables have in common."""

from typing import cast

from sqlalchemy import MetaData, Table, func
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


def table_of(model: type[Base]) -> Table:
    """The table of a model: what is asked of it does not go through the ORM."""
    return cast("Table", model.__table__)
