"""Transitions as workers run them: on what the owner knows, or under the lock, in turns.

What an owner knew is kept when others change the chat, and after it has lost it: then it must not
matter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from models.engine import transaction
from models.machine.cas_store import compare_and_set
from rejoinder.core.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from sqlalchemy import Engine

    from models.claims import Claim
    from models.machine.cas_store import KnownRow


class Attempts:
    """Runs transitions, and remembers what owners know."""

    def __init__(self, engine: Engine) -> None:
        """Know nothing yet."""
        self._engine = engine
        self._known: dict[UUID, KnownRow | None] = {}
        self._count = 0
        self.unlocked = 0
        """How many went without the lock."""

    def claimed(self, claim: Claim) -> None:
        """Remember what the claim told."""
        self._known[claim.fence.chat_id] = claim.known

    def run(self, act: Callable[[Any], Any], chat_id: UUID | None = None) -> Any:
        """What it gives, or why it is refused."""
        self._count += 1
        known = self._known.get(chat_id) if chat_id and self._count % 3 else None
        if known is not None and chat_id is not None:
            done = compare_and_set(self._engine, known, act)
            if done is not None:
                self._known[chat_id] = done.known
                self.unlocked += 1
                return done.effects
        try:
            with transaction(self._engine) as tx:
                return act(tx)
        except Refused as refusal:
            return refusal
