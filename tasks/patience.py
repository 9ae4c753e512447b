"""How long we wait for a database that went away: it restarts, or fails over, in seconds.

Repeating a transaction is safe where a fence or an id makes the second one refuse or do nothing.
When the worker is going there is less time; what is not written then is the sweep's.
"""

from psycopg2.errors import LockNotAvailable
from sqlalchemy.exc import DBAPIError
from tenacity import RetryCallState, retry, retry_if_exception, wait_exponential_jitter

from tasks import stopping

SECONDS = 20.0
SECONDS_WHEN_GOING = 5.0


def went_away(error: BaseException) -> bool:
    """Whether the database, or a lock in it, could not be had at the moment."""
    return isinstance(error, DBAPIError) and (
        error.connection_invalidated
        or isinstance(error.orig, LockNotAvailable)
        or _no_server(error)
    )


def _no_server(error: DBAPIError) -> bool:
    """Whether the connection could not be made at all: there is no SQLSTATE then."""
    return error.is_disconnect or (
        type(error).__name__ == "OperationalError" and getattr(error.orig, "pgcode", "") is None
    )


def _enough(state: RetryCallState) -> bool:
    waited = state.seconds_since_start or 0.0
    return waited >= (SECONDS_WHEN_GOING if stopping.this.asked else SECONDS)


patiently = retry(
    retry=retry_if_exception(went_away),
    wait=wait_exponential_jitter(initial=0.1, max=2),
    stop=_enough,
    reraise=True,
)
