"""The one exception of the embedded servers. Its text says what failed, and what to do."""

from __future__ import annotations


class ServersError(RuntimeError):
    """An embedded server could not be started; the message says why and what to do about it."""
