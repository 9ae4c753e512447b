"""What a mutant is."""

from dataclasses import dataclass

MATRIX = "tests/integration/matrix"


@dataclass(frozen=True)
class Mutant:
    """One deliberate fault, and the tests that have to notice it."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...] = (MATRIX,)
    only: str = ""
    """Which of them, as pytest's -k takes it."""
