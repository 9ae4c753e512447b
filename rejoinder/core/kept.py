"""What was made of values that never change, for as long as those live.

A long history is shown to the model again and again, a little longer each time: what was made of a
message for the last call need not be made again for this one. By identity, because two that are
equal cost more to find than to convert.
"""

import weakref
from typing import Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    """By object: what was made of it. It must not be, or hold, the object itself."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._made: dict[int, tuple[weakref.ref[object], T]] = {}

    def get(self, of: object) -> T | None:
        """What was made of this very object, if anything was."""
        found = self._made.get(id(of))
        return found[1] if found is not None and found[0]() is of else None

    def keep(self, of: object, made: T) -> T:
        """Keep it until the object is gone."""
        key = id(of)  # nobody else's before it is forgotten
        self._made[key] = (weakref.ref(of, lambda _: self._made.pop(key, None)), made)
        return made

    def __len__(self) -> int:
        """How many there are."""
        return len(self._made)
