"""Celery's control commands: revoking means chats, too, and is forgotten in time.

Celery 5.7 acts on requests that a worker has in hand, and remembers the rest for messages to come;
of a chat that waits without a message it knows nothing. And it remembers revoked stamps for ever
(`state.revoked_stamps` has neither limit nor expiry, unlike `state.revoked`).
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from celery.worker import control
from celery.worker import state as worker_state

from tasks.celery_patches.replacing import Replace

Command = Callable[..., Any]
OnRevoke = Callable[[Iterable[object]], None]
MAX_STAMPS = 1000
"""Revoked turns that a worker remembers; the rows know of all."""


def tell_of_revoked(replace: Replace, on_revoke: OnRevoke) -> None:
    """Let commands that revoke tell of it, and forget revoked turns in time."""
    commands = dict(control.Panel.data)
    for name, ids_in in IDS_IN.items():
        commands[name] = also(commands[name], ids_in, on_revoke)
    replace(control.Panel, "data", commands)


def also(command: Command, ids_in: Callable[..., Iterable[Any]], on_revoke: OnRevoke) -> Command:
    """A command that tells which ids it names, and then does what it did."""

    def both(state: Any, *args: Any, **options: Any) -> Any:
        on_revoke(ids_in(*args, **options))
        done = command(state, *args, **options)
        stamps = worker_state.revoked_stamps
        if (turns := stamps.get("turn_id")) and len(turns) > 2 * MAX_STAMPS:
            stamps["turn_id"] = turns[-MAX_STAMPS:]
        return done

    both.__doc__ = command.__doc__
    return both


def listed(value: Any) -> Iterable[Any]:
    """One or several, as several."""
    return value if isinstance(value, list | tuple | set) else [value]


def _revoked_ids(task_id: Any = None, **_: object) -> Iterable[Any]:
    return listed(task_id)


def _terminated_ids(signal: Any = None, task_id: Any = None, **_: object) -> Iterable[Any]:
    del signal
    return listed(task_id)


def _stamped_turns(headers: Any = None, **_: object) -> Iterable[Any]:
    if isinstance(headers, Mapping):
        return listed(headers.get("turn_id"))
    pairs = (str(header).partition("=") for header in headers or ())
    return [value for name, _, value in pairs if name == "turn_id"]


IDS_IN: dict[str, Callable[..., Iterable[Any]]] = {
    "revoke": _revoked_ids,
    "terminate": _terminated_ids,
    "revoke_by_stamped_headers": _stamped_turns,
}
"""Which ids each command names."""
