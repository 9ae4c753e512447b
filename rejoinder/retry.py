"""How long to wait before a failed model call is tried again, and what the row says of it.

The one retry layer: the SDKs' own is off. tenacity decides the waits and the end; nothing here
sleeps. The count and the moment are on the chat's row, so that any worker can go on.
"""

import random
from collections.abc import Callable, Mapping

from tenacity import RetryCallState, Retrying, stop_after_attempt, wait_exponential

from rejoinder.core.messages import Failure
from rejoinder.core.parts import Json

MAX_ATTEMPTS = 25
FIRST_SECONDS = 1.0
MOST_SECONDS = 60.0
JITTER = 0.25
"""The share of a wait that chance may add: chats that failed together do not come back together."""
MOST_JITTER_SECONDS = 15.0

_wait = wait_exponential(multiplier=FIRST_SECONDS, max=MOST_SECONDS)
_stop = stop_after_attempt(MAX_ATTEMPTS)
_policy = Retrying(wait=_wait, stop=_stop)


def may_retry(attempt: int) -> bool:
    """Whether another attempt is due when `attempt` earlier ones, and then this one, failed."""
    return not _stop(_after(attempt))


def delay(
    attempt: int, retry_after: float | None = None, chance: Callable[[], float] = random.random
) -> float:
    """Seconds to wait when `attempt` earlier ones, and then this one, failed.

    1 s, doubling to 60 s; never less than the provider asked for; then a little more, by chance.
    """
    wait = max(_wait(_after(attempt)), retry_after or 0.0)
    return wait + min(wait * JITTER, MOST_JITTER_SECONDS) * chance()


def retry_state(failure: Failure, wait: float) -> Mapping[str, Json]:
    """What the row, and so every reader, is told while the chat waits."""
    return {"delay_ms": round(wait * 1000), "max_attempts": MAX_ATTEMPTS, **failure.to_json()}


def _after(attempt: int) -> RetryCallState:
    state = RetryCallState(_policy, fn=None, args=(), kwargs={})
    state.attempt_number = max(0, attempt) + 1
    return state
