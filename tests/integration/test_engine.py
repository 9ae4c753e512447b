"""Connections of the pool: asked whether they are alive only after they lay idle."""

import pytest
from sqlalchemy import Engine, event, text
from sqlalchemy.exc import OperationalError

from models import engine as engines
from models.engine import at_once, make_engine, quickly, reading, transaction
from tasks.patience import went_away

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


def test_what_goes_straight_to_the_driver_tells_that_nobody_is_there() -> None:
    nowhere = make_engine("postgresql+psycopg2://nobody@127.0.0.1:1/nothing")
    with pytest.raises(OperationalError) as told, quickly(nowhere):
        pass
    assert went_away(told.value)


def test_what_goes_straight_to_the_driver_tells_of_a_lost_connection(
    engine: Engine, pooled: Engine
) -> None:
    with transaction(pooled) as tx:
        pid = tx.execute(PID).scalar_one()
    with at_once(engine) as other:
        other.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})
    with pytest.raises(OperationalError) as told, quickly(pooled) as (execute, _):
        execute("SELECT 1", {})
    assert told.value.connection_invalidated
    assert went_away(told.value)
    with quickly(pooled) as (execute, _):
        assert execute("SELECT pg_backend_pid()", {}) != (pid,)
    pooled.dispose()


def test_what_goes_straight_to_the_driver_is_no_transaction(pooled: Engine) -> None:
    with quickly(pooled) as (execute, _):
        assert execute("SELECT now()", {}) != execute("SELECT now()", {})
    with transaction(pooled) as tx:
        now = text("SELECT now()")
        assert tx.execute(now).scalar_one() == tx.execute(now).scalar_one()
    pooled.dispose()


def test_who_listens_to_statements_hears_those_too(pooled: Engine) -> None:
    heard: list[str] = []
    event.listen(pooled, "before_cursor_execute", lambda *told: heard.append(told[2]))
    with quickly(pooled) as (execute, _):
        assert execute("SELECT %(n)s", {"n": 1}) == (1,)
    assert heard == ["SELECT %(n)s"]
    pooled.dispose()
