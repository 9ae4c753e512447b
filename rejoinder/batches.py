"""Entries of many Redis streams in one round trip, with little work.

redis-py's pipeline takes several times as long for the same: here commands are packed at once, and
answers only looked through for errors. A stream is told to expire together with its first entry of
this process, then every minute, and once more if something was written since: so it goes even if
it was made anew meanwhile (after a FLUSHDB, or because memory ran out).
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import takewhile
from typing import Any, TypeAlias

import redis

MAX_EVENTS = 10_000
"""Per stream, roughly; older ones are cut off."""
EXPIRE_SECONDS = 24 * 3600
RENEW_SECONDS = 60.0
_ADD = ("MAXLEN", "~", MAX_EVENTS, "*", "e")
Command: TypeAlias = tuple[str | int, ...]


class Batches:
    """Sends entries, from one thread at a time."""

    def __init__(self, client: "redis.Redis") -> None:
        """Use connections of this client's pool."""
        self._pool: Any = client.connection_pool  # its types do not say what it gives
        self._renewed: dict[str, float] = {}
        """When each stream was told to expire, the oldest first."""
        self._written: set[str] = set()
        """Those of them that something was written to since."""

    def send(self, entries: Iterable[tuple[str, str]]) -> None:
        """Send entries of streams, in order; raises what redis-py raises."""
        adding = [("XADD", name, *_ADD, entry) for name, entry in entries]
        names = self._expiring({command[1] for command in adding}, time.monotonic())
        self._exchange([*adding, *_expire(names)])

    def close(self) -> None:
        """Have all expire that were written to since they were last told."""
        self._exchange([*_expire(self._written)])
        self._written.clear()

    def _expiring(self, names: AbstractSet[str], now: float) -> list[str]:
        """Those of these that nobody has told yet, and others whose time has come."""
        renewed, written = self._renewed, self._written
        old = [*takewhile(lambda name: renewed[name] <= now - RENEW_SECONDS, renewed)]
        for name in old:
            del renewed[name]
        expiring = {name for name in names if name not in renewed}
        written.update(names)
        expiring.update(name for name in old if name in written)
        written -= expiring
        renewed.update(dict.fromkeys(expiring, now))
        return [*expiring]

    def _exchange(self, commands: Sequence[Command]) -> None:
        if not commands:
            return
        try:
            connection = self._pool.get_connection()
            try:
                packed = b"".join(connection.pack_commands(commands))  # to be sent at once
                connection.retry.call_with_retry(
                    lambda: _talk(connection, packed, len(commands)),
                    lambda _: connection.disconnect(),
                )
            finally:
                self._pool.release(connection)
        except redis.RedisError:
            self._renewed.clear()  # it may come back without what it had
            self._written.clear()
            raise


def _expire(names: Iterable[str]) -> Iterator[Command]:
    return (("EXPIRE", name, EXPIRE_SECONDS) for name in names)


def _talk(connection: Any, packed: bytes, answers: int) -> None:
    """Send, and read all answers, so that the next ones are those of the next commands."""
    connection.send_packed_command([packed])
    refused: redis.ResponseError | None = None
    for _ in range(answers):
        try:
            connection.read_response(disable_decoding=True)
        except redis.ResponseError as error:
            refused = error
    if refused is not None:
        raise refused
