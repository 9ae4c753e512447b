"""What a database error means, by its SQLSTATE, as Postgres really raises it."""

import threading
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

from models.db_errors import is_disconnect, is_transient
from models.engine import make_engine, transaction
from tasks.db_retry import retrying
from tests.chats import World

PID = text("SELECT pg_backend_pid()")


@pytest.fixture
def pooled(database_url: str) -> Iterator[Engine]:
    made = make_engine(database_url, pool_size=2)
    yield made
    made.dispose()


def raised(engine: Engine, *statements: str) -> DBAPIError:
    def run() -> None:
        with transaction(engine) as tx:
            for statement in statements:
                tx.execute(text(statement))

    with pytest.raises(DBAPIError) as error:
        run()
    return error.value


@pytest.mark.parametrize("state", ["40001", "40P01", "53100", "53300", "55P03", "57014"])
def test_what_the_server_cannot_do_at_the_moment_may_be_repeated(
    pooled: Engine, state: str
) -> None:
    error = raised(pooled, _raise(state))
    assert is_transient(error)
    assert not is_disconnect(error)
    assert not error.connection_invalidated


@pytest.mark.parametrize("state", ["08006", "25006", "25P03", "57P01"])
def test_a_connection_of_no_more_use_is_dropped(pooled: Engine, state: str) -> None:
    error = raised(pooled, _raise(state))
    assert is_transient(error)
    assert is_disconnect(error)
    assert error.connection_invalidated


@pytest.mark.parametrize("state", ["22003", "23505", "23514", "42P01", "P0001"])
def test_what_is_wrong_with_the_statement_is_not_repeated(pooled: Engine, state: str) -> None:
    error = raised(pooled, _raise(state))
    assert not is_transient(error)
    assert not is_disconnect(error)


def _raise(state: str) -> str:
    return f"DO $$BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{state}'; END$$"


def test_a_statement_that_took_too_long_may_be_repeated(pooled: Engine) -> None:
    error = raised(pooled, "SET LOCAL statement_timeout = 1", "SELECT pg_sleep(5)")
    assert is_transient(error)
    assert not is_disconnect(error)


def test_connections_to_a_server_that_has_become_a_standby_are_dropped(pooled: Engine) -> None:
    with pooled.connect() as one, pooled.connect() as other:
        before = {one.execute(PID).scalar_one(), other.execute(PID).scalar_one()}
    write = "UPDATE rejoinder.workers SET name = 'x'"
    error = raised(pooled, "SET TRANSACTION READ ONLY", write)
    assert is_disconnect(error)
    with pooled.connect() as one, pooled.connect() as other:
        after = {one.execute(PID).scalar_one(), other.execute(PID).scalar_one()}
    assert not before & after, "all of them lead to the old primary"


def test_a_terminated_session_may_be_repeated_on_another(engine: Engine, pooled: Engine) -> None:
    with pooled.connect() as one:
        pid = one.execute(PID).scalar_one()
        with engine.connect() as other:
            other.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})
        with pytest.raises(DBAPIError) as error:
            one.execute(PID)
    assert is_transient(error.value)
    assert is_disconnect(error.value)


def test_the_victim_of_a_deadlock_is_repeated(engine: Engine) -> None:
    world = World(engine)
    chats = [world.new().id for _ in range(2)]
    both, tries = threading.Barrier(2), []

    @retrying
    def lock(first: int, second: int) -> None:
        tries.append(first)
        with transaction(engine) as tx:
            statement = text("SELECT FROM rejoinder.chats WHERE id = :id FOR UPDATE")
            tx.execute(statement, {"id": chats[first]})
            if len(tries) <= len(chats):
                both.wait(10)
            tx.execute(statement, {"id": chats[second]})

    threads = [threading.Thread(target=lock, args=order) for order in ((0, 1), (1, 0))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(tries) == 3, "Postgres ends one of the two, and that one begins anew"
