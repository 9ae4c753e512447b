"""What a database error means for whoever made the statement, by its SQLSTATE.

`is_transient`: nothing is wrong with the statement, the server cannot do it at the moment; again in
a while. `is_disconnect`: this connection, and those that were made with it, are of no more use.
Asked by the engine (which then drops its pooled connections) and by `tasks/db_retry.py`.
"""

from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

TRANSIENT = (
    "08",  # connection exception
    "40",  # transaction rollback: deadlock, serialization failure
    "53",  # insufficient resources: disk full, out of memory, too many connections
    "57",  # operator intervention: shutdown, and a statement's timeout
    "55P03",  # a lock could not be had in time
    "25006",  # read only: the primary has become a standby
    "25P03",  # the transaction was idle for too long, and Postgres ended the session
)
DISCONNECT = ("08", "57P01", "57P02", "57P03", "57P04", "57P05", "25006", "25P03")


def is_transient(error: BaseException) -> bool:
    """Whether the same may succeed in a while."""
    if isinstance(error, PoolTimeout):
        return True
    return is_disconnect(error) or _state(error).startswith(TRANSIENT)


def is_disconnect(error: BaseException) -> bool:
    """Whether the connection is gone, or leads to a server that is no longer the primary."""
    if not isinstance(error, DBAPIError):
        return False
    # A connection that could not be made at all has no SQLSTATE.
    no_server = isinstance(error, OperationalError) and getattr(error.orig, "pgcode", "") is None
    return error.connection_invalidated or no_server or _state(error).startswith(DISCONNECT)


def leads_nowhere(driver_error: BaseException) -> bool:
    """The same of the driver's own error, as far as its SQLSTATE tells."""
    return (getattr(driver_error, "pgcode", None) or "").startswith(DISCONNECT)


def _state(error: BaseException) -> str:
    return getattr(getattr(error, "orig", None), "pgcode", None) or ""
