"""The transitions of a chat's owner, in one round trip where nothing came in between.

Every transition of anybody adds one to `snapshot_version`: while that is the same, the row is the
one that the owner knows, and need not be locked and read again. So the transition's function runs
on the known row, and all that it writes goes out as one statement (`one_statement.py`) that begins
with `UPDATE … WHERE snapshot_version = …`: compare and set, instead of lock, check, write.

If that finds nothing (a message was queued, a stop was asked for, the lease is gone), or if the
function has to read what its owner does not know, nothing was written, and the same function runs
in a transaction, under the lock, as everybody's does. There is no second set of rules, only a
second way to write down what they say.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast
from uuid import UUID

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from models import steps
from models.engine import transaction
from models.machine import one_statement
from models.machine.unlocked import Known, NeedsLockError, Unlocked
from rejoinder.core.effects import Effects, Fence, TurnEnd
from rejoinder.core.errors import Refused
from rejoinder.core.messages import NewMessage

Transition = Callable[..., Effects]
Took = Callable[[Effects], steps.Took | None]


@dataclass(frozen=True)
class Done:
    """What became of a transition."""

    effects: Effects
    known: Known | None = None
    """What the owner knows now, if it still is the owner."""
    messages: Sequence[tuple[int, NewMessage]] | None = None
    """What was added to history; None: who needs it has to read."""


def _nothing(_: Effects) -> None:
    """Not a step that ends."""


def perform(
    engine: Engine,
    known: Known | None,
    transition: Transition,
    fence: Fence,
    *args: object,
    took: Took = _nothing,
    **options: object,
) -> Done:
    """Run one transition, on what its owner knows, or else under the lock.

    `took` tells what the step took, if it ends with this: written in the same transaction.
    """
    if known is not None:
        done = on_what_is_known(
            engine, known, lambda tx: transition(tx, fence, *args, **options), took
        )
        if done is not None:
            return done
    with transaction(engine) as tx:
        effects = transition(tx, fence, *args, **options)
        if (line := took(effects)) is not None:
            steps.write(tx, fence.chat_id, line)
    return Done(effects)


def on_what_is_known(
    engine: Engine, known: Known, run: Callable[[Session], Effects], took: Took = _nothing
) -> Done | None:
    """Run a transition without the lock; None, and nothing written, if that cannot be."""
    unlocked = Unlocked(known)
    try:
        effects = run(cast("Session", unlocked))
        if (line := took(effects)) is not None:
            unlocked.add("step", **vars(line))
    except (NeedsLockError, Refused):
        return None  # a refusal may be about old news: the row itself decides
    expected = known.chat["snapshot_version"]
    written = one_statement.execute(engine, effects.chat_id, expected, unlocked.parts)
    if written is None:
        return None
    if written.over:
        effects = replace(effects, ended=_all(effects.ended, written.over))
    then = unlocked.then(written.taken) if effects.fence else None
    return Done(effects, then, unlocked.messages)


def _all(ended: tuple[TurnEnd, ...], over: Sequence[UUID]) -> tuple[TurnEnd, ...]:
    """The turn that ended, and those that had joined it."""
    known = {end.turn_id for end in ended}
    return (*ended, *(replace(ended[0], turn_id=each) for each in over if each not in known))
