"""Which faults there are, and when they come: all of it from the seed.

`draw` gives the same list for the same seed, seconds and pool. Who is hit is a number between 0 and
1, which becomes a victim when the moment comes: the fleet is not the same in two runs.
"""

import random
from dataclasses import dataclass
from enum import StrEnum

GAP = 2.0
"""Seconds between two faults, at least; at most half as many again."""
MOST_RESTARTS = 2
"""Restarts of servers in one run."""


class Kind(StrEnum):
    """What can happen to a fleet."""

    WORKER_TERM = "SIGTERM of a worker"
    WORKER_KILL = "SIGKILL of a worker"
    CHILD_KILL = "SIGKILL of a prefork child"
    PARENT_KILL = "SIGKILL of a prefork parent"
    WORKER_QUIT = "SIGQUIT of a worker"
    WORKER_INT_TWICE = "SIGINT twice"
    WORKER_STOP = "SIGSTOP of a worker"
    CONTROL_SHUTDOWN = "control shutdown"
    CONTROL_KILL = "SIGKILL of the control worker"
    OTHER_TERM = "SIGTERM of another app's worker"
    OTHER_KILL = "SIGKILL of another app's worker"
    REVOKE_STEP = "revoke of a running step"
    REVOKE_STEP_KILL = "revoke of a running step with SIGKILL"
    REVOKE_STAMP = "revoke by stamped header"
    REVOKE_TURN = "revoke of a turn"
    INTERRUPT = "interrupt"
    DUPLICATE = "duplicate delivery"
    BROKER_RESTART = "broker restart, all messages lost"
    FLUSH = "FLUSHALL"
    CUT_CLIENTS = "all connections to the broker cut"
    DATABASE_RESTART = "Postgres restart"
    LOCKED_ROWS = "rows locked by a long transaction"
    BEAT_KILL = "beat away"
    SECOND_BEAT = "a second beat"


WEIGHTS: dict[Kind, int] = {
    Kind.WORKER_TERM: 4,
    Kind.WORKER_KILL: 4,
    Kind.CHILD_KILL: 4,
    Kind.PARENT_KILL: 1,
    Kind.WORKER_QUIT: 2,
    Kind.WORKER_INT_TWICE: 1,
    Kind.WORKER_STOP: 3,
    Kind.CONTROL_SHUTDOWN: 2,
    Kind.CONTROL_KILL: 1,
    Kind.OTHER_TERM: 2,
    Kind.OTHER_KILL: 2,
    Kind.REVOKE_STEP: 3,
    Kind.REVOKE_STEP_KILL: 2,
    Kind.REVOKE_STAMP: 2,
    Kind.REVOKE_TURN: 2,
    Kind.INTERRUPT: 4,
    Kind.DUPLICATE: 3,
    Kind.BROKER_RESTART: 2,
    Kind.FLUSH: 2,
    Kind.CUT_CLIENTS: 2,
    Kind.DATABASE_RESTART: 2,
    Kind.LOCKED_ROWS: 4,
    Kind.BEAT_KILL: 1,
    Kind.SECOND_BEAT: 1,
}
RESTARTS = {Kind.BROKER_RESTART, Kind.DATABASE_RESTART}
ONLY_PREFORK = {Kind.CHILD_KILL, Kind.PARENT_KILL}
ENABLED = frozenset(Kind)


@dataclass(frozen=True)
class Planned:
    """A fault to come."""

    at: float
    """Seconds after the start."""
    kind: Kind
    whom: float
    """0 to 1: which of the possible victims."""
    how_long: float
    """0 to 1: of the range that this kind of fault lasts."""
    kill: bool
    """For a server: killed rather than stopped."""


def draw(
    seed: int,
    seconds: float,
    pool: str,
    enabled: frozenset[Kind] = ENABLED,
    gap: float = GAP,
) -> list[Planned]:
    """The faults of a run."""
    dice = random.Random(f"faults {seed}")  # noqa: S311  # a game
    kinds = [kind for kind in Kind if kind in enabled]
    if pool != "prefork":
        kinds = [kind for kind in kinds if kind not in ONLY_PREFORK]
    planned: list[Planned] = []
    at = dice.uniform(gap / 2, 1.5 * gap)
    while kinds and at < seconds:
        (kind,) = dice.choices(kinds, [WEIGHTS[each] for each in kinds])
        kill = dice.random() < 0.5  # noqa: PLR2004  # every other time
        planned.append(Planned(at, kind, dice.random(), dice.random(), kill))
        if sum(each.kind in RESTARTS for each in planned) >= MOST_RESTARTS:
            kinds = [each for each in kinds if each not in RESTARTS]
        at += dice.uniform(gap, 1.5 * gap)
    return planned
