"""How our tasks' arguments are shown to people: ids, never content."""

from typing import Any

SHOWN = ("chat_id", "turn_id", "message_id", "queued_id", "parent_id", "when_busy", "key")


def shown(kwargs: Any) -> str:  # whatever a stranger sent
    """Represent arguments: ids and switches as they are, the rest as an ellipsis."""
    if not isinstance(kwargs, dict):
        return "…"
    visible = {k: v if k in SHOWN and _harmless(v) else "…" for k, v in kwargs.items()}
    return "{" + ", ".join(f"{str(k)[:40]!r}: {v!r}" for k, v in visible.items()) + "}"


def _harmless(value: object) -> bool:
    return isinstance(value, int | None) or (isinstance(value, str) and len(value) <= 64)  # noqa: PLR2004
