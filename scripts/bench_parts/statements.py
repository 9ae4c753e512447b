"""How much a contender sends to Postgres, whatever its driver: from the server's own log.

Postgres is told to log each statement for as long as a few turns take; never while time is taken.
BEGIN and COMMIT count. A driver that sends several statements in one message has it counted once.
"""

import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from scripts.bench_parts.place import Place

_MARK = "bench-statement"
_TOLD = re.compile(
    rf"^{_MARK}=(?P<database>\S+)=(?P<session>\d+) LOG:  (?:statement|execute .*?): *(?P<word>\w*)"
)
_ON = (
    f"ALTER SYSTEM SET log_line_prefix = '{_MARK}=%d=%p '",
    "ALTER SYSTEM SET log_statement = 'all'",
)
_OFF = ("ALTER SYSTEM RESET log_statement", "ALTER SYSTEM RESET log_line_prefix")


@dataclass
class Counted:
    """The numbers, once the `with` has ended; None: the server's log cannot be read."""

    statements: int | None = None
    commits: int | None = None

    def read(self, lines: Iterable[str], database: str) -> None:
        """Count. A statement outside of BEGIN and COMMIT is a transaction of its own."""
        self.statements = self.commits = 0
        inside: dict[str, bool] = {}
        for line in lines:
            told = _TOLD.match(line)
            if told is None or told["database"] != database:
                continue
            self.statements += 1
            word, session = told["word"].upper(), told["session"]
            if word in ("BEGIN", "START"):
                inside[session] = True
            elif word in ("COMMIT", "END") or not inside.get(session):
                self.commits += 1
                inside[session] = False
            elif word == "ROLLBACK":
                inside[session] = False


@contextmanager
def counting(place: Place) -> Iterator[Counted]:
    """Count what is sent to the place's own database meanwhile."""
    counted = Counted()
    if place.servers.home is None:  # a server that the environment names: its log is not ours
        yield counted
        return
    log = Path(place.servers.home) / "postgres.log"
    _set(place, _ON)
    begin = log.stat().st_size
    try:
        yield counted
    finally:
        _set(place, _OFF)
    with log.open(encoding="utf-8", errors="replace") as file:
        file.seek(begin)
        counted.read(file, place.database)


def _set(place: Place, statements: tuple[str, ...]) -> None:
    for statement in statements:
        place.execute(statement)
    place.execute("SELECT pg_reload_conf()")
    time.sleep(0.5)  # each backend reads it when it is between two statements
