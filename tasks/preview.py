"""Live parts of an answer, for the chat's readers.

Each carries `(history_version, attempt, seq)`, so that a reader can tell one attempt from another
and sees when something is missing. They are superseded by the `message` event of what was stored.
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
            case TextDelta(index, text):
                self._send({"of": "text", "index": index, "text": text})
            case ReasoningDelta(index, text):
                self._send({"of": "reasoning", "index": index, "text": text})
            case CallDelta(index, call_id, name, arguments):
                identity: dict[str, Json] = {"call_id": call_id, "name": name}
                self._send({"of": "tool_call", "index": index, "text": arguments, **identity})
            case PartDone(index):
                self._send({"of": "end", "index": index})
            case _:
                pass  # the reply itself is published as a message, once it is stored

    def _send(self, data: dict[str, Json]) -> None:
        self._seq += 1
        held = self._held
        data |= {
            "history_version": held.fence.history_version,
            "attempt": held.attempt,
            "seq": self._seq,
            "n": 1,
        }
        held.runtime.events.add(held.chat_id, "part", data, now=self._seq == 1)
