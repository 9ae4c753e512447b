"""How much of a tool's result the model gets to read.

A result may take about a third of the context (three bytes to a token), at least 16 KiB. Of a
longer one the beginning and the end are kept, two to one, around a marker that says how much is
missing. Cuts never split a character.
"""

FLOOR_BYTES = 16 * 1024
UNKNOWN_BYTES = 64 * 1024
"""When nobody knows how much the model can read."""
MARKER_BYTES = 256
"""Kept free for the marker."""


def result_limit(context_limit: int | None) -> int:
    """Bytes of text that one result may have, from the model's context limit in tokens."""
    if context_limit is None or context_limit <= 0:
        return UNKNOWN_BYTES
    return max(FLOOR_BYTES, context_limit // 3 * 3)


def cap(text: str, limit: int) -> str:
    """The text, or its head and tail with a marker between, in at most `limit` bytes of UTF-8."""
    data = text.encode()
    if len(data) <= limit:
        return text
    room = max(0, limit - MARKER_BYTES)
    tail_room = room // 3
    head = data[: room - tail_room].decode(errors="ignore")
    tail = data[len(data) - tail_room :].decode(errors="ignore")
    cut = len(data) - len(head.encode()) - len(tail.encode())
    marker = f"\n\n[… {cut} of {len(data)} bytes were cut here; ask for less, or for a part …]\n\n"
    if limit < MARKER_BYTES:
        return marker.encode()[: max(0, limit)].decode(errors="ignore")
    return head + marker + tail


def readable(text: str) -> str:
    """Text that every provider can encode: a lone surrogate becomes U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
