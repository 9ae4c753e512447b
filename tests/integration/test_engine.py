"""Connections of the pool: asked whether they are alive only after they lay idle."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from sqlalchemy import Engine, event, text
from sqlalchemy.exc import OperationalError

from models import engine as engines
from models.engine import at_once, make_engine, quickly, reading, transaction
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
    assert is_transient(told.value)


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
    assert is_transient(told.value)
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


@pytest.fixture
def large(engine: Engine) -> Iterator[Engine]:
    """An engine that keeps two connections at hand."""
    url = engine.url.render_as_string(hide_password=False)
    made = make_engine(url, pool_size=8, max_overflow=0, pool_timeout=0.2)
    yield made
    made.dispose()


def pid_of(engine: Engine) -> int:
    with quickly(engine) as (execute, _):
        (pid,) = execute("SELECT pg_backend_pid()", {}) or (0,)
    return int(pid)


def end(engine: Engine, pid: int) -> None:
    with at_once(engine) as other:
        other.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})


def test_a_connection_at_hand_is_used_again_and_not_given_to_transactions(large: Engine) -> None:
    pid = pid_of(large)
    assert pid_of(large) == pid
    with transaction(large) as tx:
        assert tx.execute(PID).scalar_one() != pid
    assert (pid_of(large), large.pool.checkedout()) == (pid, 1)  # type: ignore[attr-defined]


def test_no_more_than_a_quarter_of_the_pool_is_kept_at_hand(large: Engine) -> None:
    with ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(quickly(large))
    assert large.pool.checkedout() == 2  # type: ignore[attr-defined]


def test_one_that_died_at_hand_is_replaced_after_a_while_and_told_before(
    engine: Engine, large: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    end(engine, pid_of(large))
    with pytest.raises(OperationalError) as told:
        pid_of(large)
    assert told.value.connection_invalidated
    end(engine, pid_of(large))
    monkeypatch.setattr(engines, "PING_AFTER_SECONDS", 0.0)
    assert pid_of(large)
    assert large.pool.checkedout() == 1  # type: ignore[attr-defined]


def test_who_finds_the_pool_empty_gets_what_lies_at_hand(large: Engine) -> None:
    at_hand = pid_of(large)
    with ExitStack() as stack:
        for _ in range(7):
            stack.enter_context(transaction(large)).execute(PID)
        with transaction(large) as tx:
            assert tx.execute(PID).scalar_one() == at_hand


def test_nothing_is_put_aside_while_somebody_may_wait_for_it(large: Engine) -> None:
    with ExitStack() as stack:
        for _ in range(7):
            stack.enter_context(transaction(large)).execute(PID)
        pid = pid_of(large)
        assert large.pool.checkedout() == 7  # type: ignore[attr-defined]
        with transaction(large) as tx:
            assert tx.execute(PID).scalar_one() == pid


def test_what_lies_at_hand_goes_with_its_engine(engine: Engine, large: Engine) -> None:
    with quickly(large):
        pid = pid_of(large)
        large.dispose()
    with transaction(engine) as tx:
        there = text("SELECT count(*) FROM pg_stat_activity WHERE pid = :pid")
        wait_until(lambda: tx.scalar(there, {"pid": pid}) == 0, what="the end of a connection")
    assert pid_of(large)
