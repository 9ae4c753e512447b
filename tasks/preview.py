"""Live parts of an answer, for the chat's readers.

Each carries `(history_version, attempt, seq)`, so that a reader can tell one attempt from another
and sees when something is missing: `seq` counts the model's deltas, and `n` those in this part.
They are superseded by the `message` event of what was stored.
"""

from rejoinder.core.model import CallDelta, PartDone, ReasoningDelta, StreamItem, TextDelta
from rejoinder.core.parts import Json
from tasks.held import Held


class Preview:
    """Numbers and sends the parts of one attempt."""

    def __init__(self, held: Held) -> None:
        """Begin at 0."""
        self._held = held
        self._seq = 0

    def add(self, item: StreamItem) -> None:
        """Send one item on."""
        match item:
            case TextDelta(index, text, count):
                self._send({"of": "text", "index": index, "text": text}, count)
            case ReasoningDelta(index, text, count):
                self._send({"of": "reasoning", "index": index, "text": text}, count)
            case CallDelta(index, call_id, name, arguments, count):
                identity: dict[str, Json] = {"call_id": call_id, "name": name}
                part = {"of": "tool_call", "index": index, "text": arguments, **identity}
                self._send(part, count)
            case PartDone(index):
                self._send({"of": "end", "index": index}, 1)
            case _:
                pass  # the reply itself is published as a message, once it is stored

    def _send(self, data: dict[str, Json], count: int) -> None:
        held, is_first = self._held, self._seq == 0
        self._seq += count
        data["history_version"] = held.fence.history_version
        data["attempt"] = held.attempt
        data["seq"] = self._seq
        data["n"] = count
        held.runtime.events.add(held.chat_id, "part", data, now=is_first)
