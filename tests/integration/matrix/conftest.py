"""One database for all cells: emptied after each, which is quicker than a database for each."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import make_url, text

from models import claims
from models.engine import make_engine
from tests.chats import World

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

    from rejoinder.embedded import Servers


@pytest.fixture(scope="module")
def _shared(servers: Servers, _administrator: Connection, _template: str) -> Iterator[World]:
    name = f"rejoinder_matrix_{secrets.token_hex(6)}"
    _administrator.execute(text(f"CREATE DATABASE {name} TEMPLATE {_template}"))
    engine = make_engine(str(make_url(servers.database_url).set(database=name)))
    yield World(engine)
    engine.dispose()
    _administrator.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture
def world(_shared: World) -> Iterator[World]:
    """A database with one live worker and no chats."""
    claims.heartbeat(_shared.engine, _shared.worker_id)  # or it would be dead after 15 s of tests
    yield _shared
    with _shared.engine.begin() as connection:
        connection.execute(text("DELETE FROM rejoinder.chats"))
