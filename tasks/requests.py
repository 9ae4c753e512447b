"""What Celery shows of our tasks: ids, never content.

Task arguments appear in the worker's log, in task events, in `celery inspect` and in Flower. A
front-door call carries a user's words, and a foreign app sends it with Celery's default
representation of them. This `Request` class, used by all our tasks, replaces those representations
as soon as the message arrives.
"""

from typing import Any

from celery.worker.request import Request

from rejoinder.discreet import shown


class DiscreetRequest(Request):  # type: ignore[misc]  # Celery has no types
    """A request that does not tell what users say."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """Replace the sender's representations."""
        super().__init__(*args, **options)
        self._argsrepr = "(…)" if self._args else "()"
        self._kwargsrepr = shown(self._kwargs)
        self._request_dict["argsrepr"] = self._argsrepr
        self._request_dict["kwargsrepr"] = self._kwargsrepr

    def info(self, safe: bool = False) -> dict[str, Any]:  # noqa: ARG002, FBT001, FBT002
        """Describe the request for `celery inspect`."""
        described: dict[str, Any] = super().info(safe=True)
        return described
