"""Repeats what the database could not do at the moment: it restarts, or fails over, in seconds.

Repeating a transaction is safe where a fence or an id makes the second one refuse or do nothing.
When the worker is shutting down there is less time; what is not written then is the sweep's. Which
errors count is `models/db_errors.py`.
"""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from tenacity import RetryCallState, retry, retry_if_exception, wait_exponential_jitter

from models.db_errors import is_transient
from tasks import stopping

__all__ = ["is_transient", "retrying", "retrying_in_step"]

P = ParamSpec("P")
T = TypeVar("T")

SECONDS = 20.0
STEP_SECONDS = 60.0
"""Of a step, which has something to lose: an answer that was paid for."""
SECONDS_WHEN_GOING = 5.0


def retrying(act: Callable[P, T]) -> Callable[P, T]:
    """Repeat it while it fails for a transient reason, for so long."""
    return _repeating(act, lambda: SECONDS)


def retrying_in_step(act: Callable[P, T]) -> Callable[P, T]:
    """The same for what a lease holder writes."""
    return _repeating(act, lambda: STEP_SECONDS)


def _repeating(act: Callable[P, T], seconds: Callable[[], float]) -> Callable[P, T]:
    def enough(state: RetryCallState) -> bool:
        limit = min(seconds(), SECONDS_WHEN_GOING) if stopping.this.asked else seconds()
        return (state.seconds_since_start or 0.0) >= limit

    again = retry(
        retry=retry_if_exception(is_transient),
        wait=wait_exponential_jitter(multiplier=0.1, max=2),
        stop=enough,
        reraise=True,
    )(act)

    @wraps(act)
    def retried(*args: P.args, **options: P.kwargs) -> T:
        try:
            return act(*args, **options)  # without tenacity, which takes longer than most of these
        except Exception as error:
            if not is_transient(error):
                raise
        return again(*args, **options)

    return retried
