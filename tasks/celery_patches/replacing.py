"""How a patch replaces an attribute: `setattr` in a worker, one that can undo it in a test."""

from collections.abc import Callable
from typing import TypeAlias

Replace: TypeAlias = Callable[[object, str, object], None]
