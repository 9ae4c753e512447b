"""How Alembic runs our migrations: on the connection that `models/migrate.py` gives it."""

from alembic import context

import models.tables  # noqa: F401  # so that Base knows them
from models.base import SCHEMA, Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    version_table_schema=SCHEMA,
    include_schemas=True,
    include_name=lambda name, kind, _parents: kind != "schema" or name == SCHEMA,
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
