"""Connections of the pool: asked whether they are alive only after they lay idle."""

import pytest
from sqlalchemy import Engine, text

from models import engine as engines
from models.engine import at_once, make_engine, reading, transaction

PID = text("SELECT pg_backend_pid()")


@pytest.fixture
def pooled(engine: Engine) -> Engine:
    return make_engine(engine.url.render_as_string(hide_password=False), pool_size=1)


def test_a_connection_that_died_while_it_lay_idle_is_replaced(
    engine: Engine, pooled: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "PING_AFTER_SECONDS", 0.0)
    with transaction(pooled) as tx:
        pid = tx.execute(PID).scalar_one()
    with at_once(engine) as other:
        other.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})
    with transaction(pooled) as tx:
        assert tx.execute(PID).scalar_one() != pid
    pooled.dispose()


def test_what_runs_by_itself_is_no_transaction_and_leaves_none_behind(pooled: Engine) -> None:
    now = text("SELECT now()")  # stands still within a transaction
    with reading(pooled) as tx:
        assert tx.execute(now).scalar_one() != tx.execute(now).scalar_one()
    with transaction(pooled) as tx:
        assert tx.execute(now).scalar_one() == tx.execute(now).scalar_one()
    pooled.dispose()
