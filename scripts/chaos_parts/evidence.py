"""What there is to judge by, and what the judgement is made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from scripts.chaos_parts.journal import Journal
from scripts.chaos_parts.picture import Picture


@dataclass(frozen=True)
class Evidence:
    """The rows at the end, what was asked and done, and what the tools did."""

    picture: Picture
    journal: Journal
    ledger: Sequence[Mapping[str, Any]]

    @cached_property
    def tasks(self) -> dict[str, str]:
        """The calls of other apps' tasks, by the task's id."""
        return {c.external_id: c.call_id for c in self.picture.calls if c.external_id}


@dataclass(frozen=True)
class Finding:
    """One thing that should not be: what, with details, and where."""

    rule: str
    words: str
    chat_id: str | None = None

    def __str__(self) -> str:
        """In one line."""
        where = f" [chat {self.chat_id}]" if self.chat_id else ""
        return f"{self.rule}: {self.words}{where}"
