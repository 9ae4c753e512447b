"""Two pools: for transactions, and for single statements. Connections are pinged after idling."""

from contextlib import ExitStack

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as NoneLeft

from models import engine as engines
from models.engine import at_once, make_engine, reading, transaction
from tasks.db_retry import is_transient
from tests.waiting import wait_until

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
    end(engine, pid)
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


def test_a_single_statement_tells_that_nobody_is_there() -> None:
    nowhere = make_engine("postgresql+psycopg2://nobody@127.0.0.1:1/nothing")
    with pytest.raises(OperationalError) as told:
        pid_of(nowhere)
    assert is_transient(told.value)


def test_a_single_statement_tells_of_a_lost_connection_and_the_next_has_another(
    engine: Engine, pooled: Engine
) -> None:
    pid = pid_of(pooled)
    end(engine, pid)
    with pytest.raises(OperationalError) as told:
        pid_of(pooled)
    assert told.value.connection_invalidated
    assert is_transient(told.value)
    assert pid_of(pooled) != pid
    pooled.dispose()


def test_single_statements_survive_a_restart_of_postgres(
    engine: Engine, pooled: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "PING_AFTER_SECONDS", 0.0)
    end(engine, pid_of(pooled))
    assert pid_of(pooled)
    pooled.dispose()


def test_whatever_is_said_between_two_single_statements_is_a_ping_or_nothing(
    pooled: Engine,
) -> None:
    last = "SELECT query FROM pg_stat_activity WHERE pid = :pid"
    pid = pid_of(pooled)
    with transaction(pooled) as tx:
        assert tx.execute(text(last), {"pid": pid}).scalar_one() == PID.text
    assert pid_of(pooled) == pid
    pooled.dispose()


def test_the_two_kinds_of_connections_share_the_size_of_the_pool(engine: Engine) -> None:
    url = engine.url.render_as_string(hide_password=False)
    made = make_engine(url, pool_size=5, max_overflow=0, pool_timeout=0.1)
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(transaction(made)).execute(PID)
        for _ in range(3):
            stack.enter_context(at_once(made)).execute(PID)
        with pytest.raises(NoneLeft), transaction(made) as tx:
            tx.execute(PID)
        with pytest.raises(NoneLeft), at_once(made):
            pass
    made.dispose()


def test_all_connections_go_with_their_engine(engine: Engine, pooled: Engine) -> None:
    pid = pid_of(pooled)
    pooled.dispose()
    there = text("SELECT count(*) FROM pg_stat_activity WHERE pid = :pid")
    with reading(engine) as tx:
        wait_until(lambda: tx.scalar(there, {"pid": pid}) == 0, what="the end of a connection")
    assert pid_of(pooled)
    pooled.dispose()


def pid_of(engine: Engine) -> int:
    with at_once(engine) as connection:
        return int(connection.execute(PID).scalar_one())


def end(engine: Engine, pid: int) -> None:
    with at_once(engine) as other:
        other.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})
