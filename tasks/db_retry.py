"""Repeats what the database could not do at the moment: it restarts, or fails over, in seconds.

Repeating a transaction is safe where a fence or an id makes the second one refuse or do nothing.
When the worker is shutting down there is less time; what is not written then is the sweep's. Which
errors count is `models/db_errors.py`.
"""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from tenacity import RetryCallState, retry, retry_if_exception, wait_exponential_jitter

from models.db_errors import is_disconnect, is_transient
from tasks import stopping

__all__ = ["SECONDS_WHEN_GOING", "is_disconnect", "is_transient", "retrying"]

P = ParamSpec("P")
T = TypeVar("T")

SECONDS = 20.0
SECONDS_WHEN_GOING = 5.0


def _enough(state: RetryCallState) -> bool:
    waited = state.seconds_since_start or 0.0
    return waited >= (SECONDS_WHEN_GOING if stopping.this.asked else SECONDS)


_again_and_again = retry(
    retry=retry_if_exception(is_transient),
    wait=wait_exponential_jitter(multiplier=0.1, max=2),
    stop=_enough,
    reraise=True,
)


def retrying(act: Callable[P, T]) -> Callable[P, T]:
    """Repeat it while it fails for a transient reason, for so long.

    The first time without tenacity: it takes longer than most of what is done here.
    """

    @wraps(act)
    def retried(*args: P.args, **options: P.kwargs) -> T:
        try:
            return act(*args, **options)
        except Exception as error:
            if not is_transient(error):
                raise
        return _again_and_again(act)(*args, **options)

    return retried
