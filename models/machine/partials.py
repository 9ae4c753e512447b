"""What readers had seen of an answer when its worker went away.

It stands in the row while nobody has the chat. A stop saves it to history, as it does with what a
living worker has; a claim drops it, and whoever claimed tells readers so before the next attempt's
first word (`claim.py`); so does whatever changes history (`Change.touch_history`).
"""

from models.machine.change import Change
from rejoinder.core import parts
from rejoinder.core.effects import Event, EventKind
from rejoinder.core.messages import NewMessage, Role, Usage
from rejoinder.core.state import Status


def keep(change: Change, partial: NewMessage | None) -> None:
    """Keep it in the row of a chat that is pending now, unless history is not what it answers."""
    if partial is None or not partial.parts or change.chat.status is not Status.PENDING:
        return
    if change.history_changed:
        change.events.append(Event(EventKind.PREVIEW_RESET, {}))
        return
    change.chat.partial = {
        "parts": parts.dump(partial.parts),
        "model": partial.model,
        "usage": vars(partial.usage),
        "runtime_ms": partial.runtime_ms,
        "cost_micros": partial.cost_micros,
    }


def take(change: Change) -> NewMessage | None:
    """Take it out of the row, to save it. What it took was counted when its worker left."""
    stored, change.chat.partial = change.chat.partial, None
    if stored is None:
        return None
    values = dict(stored)
    usage = Usage(**values.pop("usage"))  # type: ignore[arg-type]  # as it was kept
    said = parts.load(values.pop("parts"))  # type: ignore[arg-type]
    return NewMessage(Role.ASSISTANT, said, usage=usage, counted=True, **values)  # type: ignore[arg-type]
