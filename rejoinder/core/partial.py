"""What has come of an answer that is still being written.

Kept for the case that it never ends: a stop saves the words so far and the calls that are complete,
and drops a call whose arguments are not.
"""

from typing import assert_never

from rejoinder.core.messages import Usage
from rejoinder.core.model import (
    CallDelta,
    PartDone,
    ReasoningDelta,
    Reply,
    StreamItem,
    TextDelta,
    UsageSoFar,
)
from rejoinder.core.parts import Part, Reasoning, Text


class Partial:
    """Collects the parts of an answer as they stream in."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._words: dict[int, tuple[type[Text | Reasoning], list[str]]] = {}
        self._done: dict[int, Part] = {}
        self.usage = Usage()
        """What the provider has said of its cost so far."""

    def add(self, item: StreamItem) -> None:
        """Take one item of the stream."""
        match item:
            case TextDelta(index, text):
                self._words.setdefault(index, (Text, []))[1].append(text)
            case ReasoningDelta(index, text):
                self._words.setdefault(index, (Reasoning, []))[1].append(text)
            case PartDone(index, part):
                self._words.pop(index, None)
                self._done[index] = part
            case UsageSoFar(usage):
                self.usage = usage
            case Reply(parts, usage=usage):
                self.usage = usage
                self._words.clear()
                self._done = dict(enumerate(parts))
            case CallDelta():
                pass  # worth nothing until it is complete
            case _:
                assert_never(item)

    def parts(self) -> tuple[Part, ...]:
        """What can be kept: complete parts, and words so far. Unsigned thinking cannot go back."""
        words = {
            index: kind("".join(text))
            for index, (kind, text) in [*self._words.items()]  # a stream left behind may go on
            if kind is Text and "".join(text).strip()
        }
        return tuple(part for _, part in sorted({**self._done, **words}.items()))
