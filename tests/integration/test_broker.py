"""What is mended in kombu's way to Redis."""

from kombu.connection import Connection

import tasks.edges  # noqa: F401  # it does the mending
from tests.conftest import RedisSpace


def test_a_channel_keeps_its_client_as_long_as_its_pool(redis_space: RedisSpace) -> None:
    with Connection(redis_space.url) as connection:  # type: ignore[no-untyped-call]
        channel = connection.default_channel
        with channel.conn_or_acquire() as one, channel.conn_or_acquire() as other:
            assert one is other
            assert one.ping()
        channel._disconnect_pools()
        with channel.conn_or_acquire() as new:
            assert new is not one
            assert new.ping()
