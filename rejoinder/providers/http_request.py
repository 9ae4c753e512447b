"""A request as bytes, whole.

Heads are h11's business, which is strict, and takes its time. But a client sends the same head
again and again, but for the size of its body: what h11 has accepted once is remembered.
"""

from functools import lru_cache

import h11
import httpx2

HEADS = 64
"""How many are remembered: one for each key, address and set of options that is in use."""
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})
_END = h11.EndOfMessage()


def whole(http: h11.Connection, request: httpx2.Request) -> bytes | None:
    """All of a request whose body is there, and says its size; None: it is to be sent in pieces."""
    if not isinstance(request.stream, httpx2.ByteStream):
        return None
    body, raw = request.content, request.headers.raw
    size = b"%d" % len(body)
    framing = [pair for pair in raw if pair[0].lower() in _FRAMING]
    if [value for _, value in framing] != [size]:
        return None  # h11 will say what is wrong with it
    others = tuple([pair for pair in raw if pair is not framing[0]])
    head = http.send(_accepted(request.method, request.url.raw_path, others)) or b""
    http.send(_END)
    return b"%bContent-Length: %b\r\n\r\n%b" % (head[:-2], size, body)


@lru_cache(maxsize=HEADS)
def _accepted(method: str, target: bytes, headers: tuple[tuple[bytes, bytes], ...]) -> h11.Request:
    """A head without the size of its body, if h11 takes it."""
    return h11.Request(method=method, target=target, headers=[*headers])
