"""What was made of values that never change, for as long as those live.

A long history is shown to the model again and again, a little longer each time: what was made of a
message for the last call need not be made again for this one. By identity, because two that are
equal cost more to find than to convert.
"""

import weakref
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

S = TypeVar("S")
T = TypeVar("T")


class Kept(Generic[T]):
    """By object: what was made of it. It must not be, or hold, the object itself."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._made: dict[int, tuple[weakref.ref[object], T]] = {}

    def all(self, many: Iterable[S], make: Callable[[S], T]) -> list[T]:
        """What was made of each of these, or is made of it now."""
        made, found = self._made, []
        for of in many:
            known = made.get(id(of))
            if known is not None and known[0]() is of:
                found.append(known[1])
            else:
                found.append(self._keep(of, make(of)))
        return found

    def _keep(self, of: object, made: T) -> T:
        """Keep it until the object is gone."""
        key = id(of)  # nobody else's before it is forgotten
        self._made[key] = (weakref.ref(of, lambda _: self._made.pop(key, None)), made)
        return made

    def __len__(self) -> int:
        """How many there are."""
        return len(self._made)
