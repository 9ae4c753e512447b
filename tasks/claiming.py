"""Taking a chat, or leaving it to others: what comes before a step."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid5

from models import claims
from rejoinder.core.effects import Dispatch
from tasks.db_retry import retrying
from tasks.dispatch import dispatch
from tasks.local_dispatch import take_claim
from tasks.runtime import Runtime
from tasks.timers import after

MAX_LEFT = 1000
"""Chats that are remembered to be dispatched again; further ones are the sweep's."""
LEFT_SECONDS = 1.0
"""How soon a chat that was left is dispatched again, at the latest."""


@contextmanager
def claiming(
    runtime: Runtime, chat_id: UUID, step_id: UUID, turn_id: UUID | None = None
) -> Iterator[claims.Claim | None]:
    """Claim the chat for a step, or give None.

    A chat that took several workers down is suspect; a process runs one of those at a time. One
    that may have been left for this reason is dispatched again when that one is done, or a moment
    later: another process may be free for it.
    """
    claim = take_claim(step_id) or _claim(runtime, chat_id, step_id, suspects=False)
    if claim is not None or not _is_suspect(runtime, chat_id):
        yield claim
    elif runtime.suspects.acquire(blocking=False):
        try:
            yield _claim(runtime, chat_id, step_id, suspects=True)
        finally:
            _let_go(runtime)
    else:
        if turn_id is not None:
            _leave(runtime, Dispatch(chat_id, turn_id, step_id))
        yield None


def _leave(runtime: Runtime, to: Dispatch) -> None:
    """Have a chat that may be suspect taken soon, by whoever is free for one then."""
    if to.chat_id in runtime.left or len(runtime.left) >= MAX_LEFT:
        return  # it is dispatched anyway, now or by the sweep
    runtime.left[to.chat_id] = to
    after(LEFT_SECONDS, partial(_pass_on, runtime, to.chat_id))


def _pass_on(runtime: Runtime, chat_id: UUID) -> None:
    if (to := runtime.left.pop(chat_id, None)) is not None:
        dispatch(to)


def pass_on_all(runtime: Runtime) -> None:
    """Have others take what this process has left: it is shutting down."""
    with suppress(KeyError):
        while True:
            dispatch(runtime.left.popitem(last=False)[1])


def _let_go(runtime: Runtime) -> None:
    runtime.suspects.release()
    with suppress(KeyError):
        _, waiting = runtime.left.popitem(last=False)
        dispatch(waiting)


@retrying
def _is_suspect(runtime: Runtime, chat_id: UUID) -> bool:
    return claims.is_suspect(runtime.engine, chat_id)


@retrying
def _claim(
    runtime: Runtime, chat_id: UUID, step_id: UUID, *, suspects: bool
) -> claims.Claim | None:
    claim = claims.claim(
        runtime.engine,
        chat_id,
        runtime.worker_id,
        dead_after=runtime.dead_after,
        step_id=step_id,
        suspects=suspects,
    )
    # Without the fast paths nothing is known by it: all is read, and written under the lock.
    return claim if claim is None or runtime.settings.fast else replace(claim, known=None)


def turn_of(request: Any) -> UUID | None:
    """The turn that a message is stamped with; None: it is not from us."""
    turn_id = (request.stamps or {}).get("turn_id")
    if isinstance(turn_id, list | tuple):
        turn_id = turn_id[0] if turn_id else None
    try:
        return UUID(turn_id) if turn_id else None
    except (ValueError, AttributeError, TypeError):
        return None


def step_of(request: Any) -> UUID:
    """The step's id: its task's, or, if another app chose that as it pleases, one made of it."""
    try:
        return UUID(request.id)
    except ValueError:
        return uuid5(NAMESPACE_OID, request.id)


def ring_again(request: Any, chat_id: str) -> None:
    """Pass a message on that came when this worker was going: another one is to hear it."""
    turn_id = turn_of(request)
    if turn_id is None:
        return  # if the chat is to run, the sweep rings
    dispatch(Dispatch(UUID(chat_id), turn_id, step_of(request)))
