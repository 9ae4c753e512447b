"""Durable agent chats on the Celery you already run.

For other apps: `rejoinder.Client`. For tools: `rejoinder.tools`. For tests: `rejoinder.testing`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rejoinder.client import Client as Client
    from rejoinder.client import Turn as Turn
    from rejoinder.core.errors import Rejected as Rejected
    from rejoinder.results import TurnFailed as TurnFailed
    from rejoinder.view import ChatView as ChatView

__version__ = "0.1.0"

_FROM = {
    "Client": "rejoinder.client",
    "Turn": "rejoinder.client",
    "Rejected": "rejoinder.core.errors",
    "TurnFailed": "rejoinder.results",
    "ChatView": "rejoinder.view",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for, when it is: `rejoinder.core` must not bring Celery along."""
    if name not in _FROM:
        raise AttributeError(f"module 'rejoinder' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415  # only for those who ask

    return getattr(import_module(_FROM[name]), name)
