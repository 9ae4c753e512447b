"""The other app's tasks as tools, and tools that ask a person first."""

from pathlib import Path

from rejoinder.tools import Approve, celery_tool, tool

REFUND = {
    "type": "object",
    "properties": {
        "amount": {"type": "integer", "minimum": 1},
        "note": {"type": "string"},
        "until": {"type": "string"},
    },
    "required": ["amount"],
    "additionalProperties": False,
}
REASON = {"type": "object", "properties": {"reason": {"type": "string"}}}

refund = celery_tool(
    "billing.refund", schema=REFUND, description="Pay back.", queue="billing", timeout=120
)
refund_soon = celery_tool(
    "billing.refund",
    name="refund_soon",
    schema=REFUND,
    description="Pay back, or be told soon that it takes longer.",
    queue="billing",
    timeout=1,
)
refund_again = celery_tool(
    "billing.refund",
    name="refund_again",
    schema=REFUND,
    description="Pay back; may be asked twice.",
    queue="billing",
    timeout=120,
    idempotent=True,
)
refund_asked = celery_tool(
    "billing.refund",
    name="refund_asked",
    schema=REFUND,
    description="Pay back, if a person allows it.",
    queue="billing",
    timeout=120,
    approval=Approve(seconds=60),
)
fail = celery_tool("billing.fail", schema=REASON, description="Fail.", queue="billing")
odd = celery_tool("billing.odd", schema=REASON, description="Odd.", queue="billing")
quiet = celery_tool("billing.quiet", schema=REASON, description="Quiet.", queue="billing")
missing = celery_tool("billing.missing", schema=REASON, description="None.", queue="billing")


@tool(approval=True)
def delete_all(note: str) -> str:
    """Delete everything."""
    _write(note, "deleted")
    return "deleted"


@tool(approval=Approve(seconds=1, default=True))
def delete_unless_told(note: str) -> str:
    """Delete, unless somebody objects."""
    _write(note, "deleted")
    return "deleted"


@tool(approval=Approve(seconds=1))
def delete_if_told(note: str) -> str:
    """Delete, if somebody allows it in time."""
    _write(note, "deleted")
    return "deleted"


@tool(approval=True, idempotent=True, timeout=60)
async def count_if_told(note: str) -> str:
    """Count; may be repeated."""
    _write(note, "counted")
    return "counted"


def _write(note: str, word: str) -> None:
    with Path(note).open("a", encoding="utf-8") as file:
        file.write(f"{word}\n")
