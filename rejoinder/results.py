"""What a turn's Celery result holds.

A turn's id is a Celery result id: `AsyncResult(turn_id).get()` in any app gives the value built by
`outcome`, or raises `TurnFailed`. An interrupted turn is no failure: it has the text that was
written until then, and says so.
"""

from typing import Any
from uuid import UUID

from rejoinder.core.effects import TurnEnd


class TurnFailed(Exception):  # noqa: N818  # what happened, not a fault of the caller
    """The turn ended in an error; `args` are the sentence for people and the kind for programs."""

    @property
    def kind(self) -> str:
        """The kind of failure, e.g. `rate_limit`."""
        return str(self.args[1]) if len(self.args) > 1 else "generic"


def outcome(chat_id: UUID, end: TurnEnd) -> dict[str, Any]:
    """The value of a turn that finished, was interrupted or was cancelled."""
    return {
        "chat_id": str(chat_id),
        "turn_id": str(end.turn_id),
        "state": str(end.state),
        "message_id": end.answer_id,
        "text": end.answer,
    }


def failed(chat_id: UUID, end: TurnEnd) -> TurnFailed:
    """The exception of a turn that failed."""
    error = end.error or {}
    return TurnFailed(
        str(error.get("message", "The turn failed.")),
        str(error.get("kind", "generic")),
        {**error, "chat_id": str(chat_id), "turn_id": str(end.turn_id)},
    )
