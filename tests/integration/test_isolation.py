"""Each test has a database and a key space that no other test sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import redis
from sqlalchemy import text

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from tests.conftest import RedisSpace

seen: list[str] = []


@pytest.mark.parametrize("time", ["first", "second"])
def test_what_one_test_writes_no_other_test_sees(
    time: str, engine: Engine, redis_space: RedisSpace
) -> None:
    assert engine.url.database not in seen
    assert redis_space.prefix not in seen
    seen.extend([str(engine.url.database), redis_space.prefix])
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE only_mine ()"))  # fails if it is there already
    with redis.Redis.from_url(redis_space.url) as client:
        assert list(client.scan_iter(match="test-*:only-mine")) == []
        client.set(redis_space.key("only-mine"), time)


def test_a_database_is_migrated_when_a_test_gets_it(engine: Engine) -> None:
    with engine.connect() as connection:
        found = connection.execute(
            text("SELECT count(*) FROM information_schema.tables WHERE table_name = 'chats'")
        )
        assert found.scalar_one() == 1
