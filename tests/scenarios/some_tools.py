"""Tools for scenarios."""

from rejoinder.tools import tool


@tool
def explode(reason: str) -> str:
    """Fail.

    Args:
        reason: what to say.
    """
    raise ValueError(reason)


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b
