"""What a running tool may know and say: `ToolContext`.

A tool asks for it with a parameter annotated `ToolContext`; the model never sees that parameter.
It never logs arguments by itself. The runner builds one per call (see `run.py`).
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from rejoinder.core.cancellation import Cancellation
from rejoinder.core.effects import Cause
from rejoinder.core.parts import Json

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ToolContext:
    """One call of one tool. Safe from any thread."""

    chat_id: UUID
    turn_id: UUID
    call_id: str
    """The model's id of this call; the same when a crashed call is run again."""
    tool: str
    cancellation: Cancellation = field(default_factory=Cancellation, repr=False)
    """This call's own: it also fires when the call's time is up."""
    on_progress: Callable[[Json], None] | None = field(default=None, repr=False)
    """Called in the tool's thread (or in the event loop, for an async tool): be quick."""

    @property
    def idempotency_key(self) -> str:
        """The same for every run of this call, and for no other call of any chat."""
        return f"{self.chat_id}/{self.turn_id}/{self.call_id}"

    @property
    def cancelled(self) -> bool:
        """Whether to stop: nobody waits for the result any more."""
        return self.cancellation.cancelled

    @property
    def cause(self) -> Cause | None:
        """Why to stop, or None."""
        return self.cancellation.cause

    def raise_if_cancelled(self) -> None:
        """Leave the tool here if nobody waits for its result any more."""
        self.cancellation.raise_if_cancelled()

    @property
    def logger(self) -> "logging.LoggerAdapter[logging.Logger]":
        """A logger whose records carry the ids of this call."""
        ids = {
            "chat_id": str(self.chat_id),
            "turn_id": str(self.turn_id),
            "call_id": self.call_id,
            "tool": self.tool,
        }
        return logging.LoggerAdapter(logging.getLogger(f"{__package__}.{self.tool}"), ids)

    def progress(self, value: Json) -> None:
        """Tell whoever watches how far the call has come: a text or a JSON value.

        Never fails, and says nothing once the call is cancelled: a thread that was left behind must
        not speak in a turn that is over.
        """
        if self.on_progress is None or self.cancelled:
            return
        try:
            self.on_progress(value)
        except Exception:  # noqa: BLE001  # a listener's fault never becomes the tool's
            _log.exception("progress of tool %s was not told", self.tool)
