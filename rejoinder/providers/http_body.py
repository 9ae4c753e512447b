"""How the body of an HTTP/1.1 answer is cut, undone.

A server sends each event as a chunk of its own. All that have come together are taken out at once:
a reader that is behind reads what it has missed in one go.
"""

import re
from typing import Protocol

LINE_BYTES = 2**14
"""No line between chunks is longer, if it is one."""
_PLAIN = re.compile(rb"([0-9A-Fa-f]{1,15})\r\n")
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r]*)?\r")


class MalformedError(Exception):
    """This is no HTTP."""


class Framing(Protocol):
    """Where a body ends."""

    @property
    def complete(self) -> bool:
        """Whether all of it has come."""

    @property
    def surplus(self) -> bool:
        """Whether something came after its end: nobody knows what the connection says next."""

    def take(self, data: bytes) -> bytes:
        """What of the content is in these bytes."""

    def end(self) -> None:
        """Refuse to end here unless it may: the connection is closed."""


class Sized:
    """So many bytes."""

    def __init__(self, size: int) -> None:
        """Expect them all."""
        self._left = size
        self.surplus = False

    @property
    def complete(self) -> bool:
        """Whether all of it has come."""
        return self._left == 0

    def take(self, data: bytes) -> bytes:
        """Count."""
        content = data[: self._left]
        self.surplus |= len(data) > self._left
        self._left -= len(content)
        return content

    def end(self) -> None:
        """Say how much is missing."""
        raise MalformedError(f"the connection was closed {self._left} bytes before the end")


class UntilClosed:
    """Whatever comes."""

    complete = False
    surplus = False

    def take(self, data: bytes) -> bytes:
        """All of it."""
        return data

    def end(self) -> None:
        """Know that this is the end."""
        self.complete = True


class Chunked:
    """Chunks, each behind a line with its size; the last one is empty."""

    def __init__(self) -> None:
        """Expect a size."""
        self._expect = self._size
        self._line = b""
        """What has come of a line."""
        self._left = 0
        """What is to come of a chunk."""
        self.complete = False
        self.surplus = False

    def take(self, data: bytes) -> bytes:
        """The content of all chunks in it."""
        found: list[bytes] = []
        at, size = 0, len(data)
        while at < size and not self.complete:
            if self._left:
                found.append(data[at : at + self._left])
                at += len(found[-1])
                self._left -= len(found[-1])
                continue
            if (chunk := self._whole(data, at)) is not None:
                found.append(chunk[0])
                at = chunk[1]
                continue
            end = data.find(b"\n", at)
            line = self._line + data[at : end if end >= 0 else size]
            if len(line) > LINE_BYTES:
                raise MalformedError("a line between chunks has no end")
            if end < 0:
                self._line = line
                break
            self._line, at = b"", end + 1
            self._expect(line)
        self.surplus |= at < size and self.complete
        return found[0] if len(found) == 1 else b"".join(found)

    def end(self) -> None:
        """Refuse: the last chunk is missing."""
        raise MalformedError("the connection was closed before the last chunk")

    def _whole(self, data: bytes, at: int) -> tuple[bytes, int] | None:
        """A chunk that is there from its size to its end, as nearly all are, and what is after."""
        if self._line or self._expect != self._size:
            return None
        plain = _PLAIN.match(data, at)
        if plain is None:
            return None
        begin = plain.end()
        end = begin + int(plain[1], 16)
        if begin == end or data[end : end + 2] != b"\r\n":
            return None
        return data[begin:end], end + 2

    def _size(self, line: bytes) -> None:
        found = _SIZE.fullmatch(line)
        if found is None:
            raise MalformedError(f"{line[:40]!r} is not the size of a chunk")
        self._left = int(found[1], 16)
        self._expect = self._blank if self._left else self._trailer

    def _blank(self, line: bytes) -> None:
        if line != b"\r":
            raise MalformedError("a chunk is longer than its size")
        self._expect = self._size

    def _trailer(self, line: bytes) -> None:
        self.complete = line == b"\r"
