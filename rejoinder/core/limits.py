"""The numbers that are promises rather than settings, each with its reason."""

from datetime import timedelta

MAX_QUEUED = 20
"""Messages that wait in one chat. More is a client that does not listen."""

MOST_KEY = 255
"""Characters of an idempotency key: what other systems allow, and an index likes."""

MOST_TITLE = 200
"""Characters of a title."""

MOST_BUDGET = 10**18
"""Tokens, or millionths of a dollar: what a bigint holds, with room for what is spent beyond."""

MOST_TOKENS = 2_000_000_000
"""Tokens of one call that are believed: what an integer column holds."""

MOST_CALL_MICROS = 10**15
"""Millionths of a dollar that one call can cost, whatever its price: sums can be stored."""

MOST_CLIENT_TOOLS = 250
"""Tools that the app can declare for one chat."""

MAX_CRASHES = 3
"""Workers a chat may take down in a row before it is the suspect."""

SUSPECT_AT = MAX_CRASHES - 1
"""From here on a chat is suspect: one process runs at most one of them at a time, so that the one
that kills its workers takes no other suspect along, and those are cleared."""

MAX_CLAIMS_WITHOUT_PROGRESS = 20
"""Claims of a chat in a row that may lead nowhere, whatever the reason: each may cost a model call
whose answer cannot be stored."""

LOCK_TIMEOUT_MS = 10_000
"""Longest wait for a chat's lock. Transitions take milliseconds: beyond this somebody hangs."""

IDLE_IN_TRANSACTION_MS = 5_000
"""After this Postgres ends a transaction whose process stopped talking, and frees its locks: well
before those who wait for them give up."""

DUE_GAP = timedelta(seconds=2)
"""How long after its moment a waiting retry counts as forgotten: the process that kept the time is
gone. Short, because the message is not in any queue yet."""

LOOK_AFTER = timedelta(seconds=10)
"""How long another app's task has before the sweep looks whether its answer got lost."""

SWEEP_OVERDUE = timedelta(seconds=15)
"""Three periods of beat's schedule. After this any worker sweeps."""

REDISPATCH_FIRST = timedelta(seconds=10)
REDISPATCH_MOST = timedelta(minutes=5)


def redispatch_gap(dispatches: int) -> timedelta:
    """How long a pending chat's message may take before it is sent again: 10 s, doubling to 5 min.

    Growing gaps, so that a long backlog is not multiplied by its own repetitions.
    """
    return min(REDISPATCH_FIRST * (1 << max(0, min(dispatches - 1, 16))), REDISPATCH_MOST)
