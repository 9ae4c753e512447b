"""How long we wait for a database that went away: it restarts, or fails over, in seconds.

Repeating a transaction is safe where a fence or an id makes the second one refuse or do nothing.
When the worker is going there is less time; what is not written then is the sweep's.
"""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from psycopg2.errors import LockNotAvailable
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from tenacity import RetryCallState, retry, retry_if_exception, wait_exponential_jitter

from tasks import stopping

P = ParamSpec("P")
T = TypeVar("T")

SECONDS = 20.0
SECONDS_WHEN_GOING = 5.0


def went_away(error: BaseException) -> bool:
    """Whether the database, a connection to it or a lock in it cannot be had at the moment."""
    if isinstance(error, PoolTimeout):
        return True
    if not isinstance(error, DBAPIError):
        return False
    # A connection that could not be made at all has no SQLSTATE.
    no_server = isinstance(error, OperationalError) and getattr(error.orig, "pgcode", "") is None
    return error.connection_invalidated or no_server or isinstance(error.orig, LockNotAvailable)


def _enough(state: RetryCallState) -> bool:
    waited = state.seconds_since_start or 0.0
    return waited >= (SECONDS_WHEN_GOING if stopping.this.asked else SECONDS)


_again_and_again = retry(
    retry=retry_if_exception(went_away),
    wait=wait_exponential_jitter(multiplier=0.1, max=2),
    stop=_enough,
    reraise=True,
)


def patiently(act: Callable[P, T]) -> Callable[P, T]:
    """Repeat it while the database is away, for so long.

    The first time without tenacity: it takes longer than most of what is done here.
    """

    @wraps(act)
    def patient(*args: P.args, **options: P.kwargs) -> T:
        try:
            return act(*args, **options)
        except Exception as error:
            if not went_away(error):
                raise
        return _again_and_again(act)(*args, **options)

    return patient
