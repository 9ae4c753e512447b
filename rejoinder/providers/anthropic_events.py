"""The events of a streamed answer, from the bytes of its body.

All events that came together are cut and decoded in one go, in time by their length, however small
the pieces are in which they come. An error is one by the name of its event or by its type. Nothing
is decoded before its turn: an event that is broken takes none with it that came before, and what
comes after the last one does not matter.
"""

import json
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import cast

import httpx2
from anthropic import APIStatusError

from rejoinder.core.parts import Json
from rejoinder.providers.errors import BrokenStreamError


def _finite(number: str) -> float | None:
    """A number, unless it is none, or too large for one: no JSON can hold that."""
    found = float(number)
    return found if isfinite(found) else None


_decoder = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)


class Events:
    """The events of one body, as it comes."""

    def __init__(self, response: httpx2.Response) -> None:
        """Begin with nothing; the response is for errors within its body."""
        self._response = response
        self._begun: list[bytes] = []
        """What has come of an event that is not whole yet."""
        self._held = b""
        """A carriage return that may be half of the end of a line."""

    def take(self, chunk: bytes) -> Iterator[Mapping[str, Json]]:
        """The events that are whole with this chunk."""
        chunk = self._with_line_feeds(chunk)
        last = self._begun[-1][-1:] if self._begun else b""
        if b"\n\n" not in last + chunk:
            if chunk:
                self._begun.append(chunk)
            return iter(())
        whole, _, rest = b"".join([*self._begun, chunk]).rpartition(b"\n\n")
        self._begun = [rest] if rest else []
        return self._parsed(whole)

    def end(self) -> Iterator[Mapping[str, Json]]:
        """What is left: some servers leave out the blank line after the last event."""
        return self._parsed(b"".join(self._begun))

    def parsed(self, data: str | bytes, event: str = "") -> Mapping[str, Json]:
        """The object that an event is, unless it is an error."""
        try:
            found = _decoded(data if isinstance(data, str) else _text(data))
        except ValueError as error:
            if event == "error":
                raise self._error(data) from error
            raise BrokenStreamError("an event is not complete") from error
        if event == "error":
            raise self._error(found)
        if not isinstance(found, dict):
            raise BrokenStreamError("an event is no object")
        if found.get("type") == "error":
            raise self._error(found)
        return found

    def _error(self, body: object) -> APIStatusError:
        return APIStatusError("an error within the stream", response=self._response, body=body)

    def _with_line_feeds(self, chunk: bytes) -> bytes:
        """The chunk with one kind of line ends; what may be half of one waits for the other."""
        if self._held:
            chunk, self._held = self._held + chunk, b""
        if b"\r" not in chunk:
            return chunk
        if chunk.endswith(b"\r"):
            chunk, self._held = chunk[:-1], b"\r"
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _parsed(self, events: bytes) -> Iterator[Mapping[str, Json]]:
        try:
            text = _text(events)
        except ValueError as error:
            one_by_one = events.split(b"\n\n")
            if len(one_by_one) == 1:
                raise BrokenStreamError("an event is not complete") from error
            for each in one_by_one:
                yield from self._parsed(each)
            return
        for event in text.split("\n\n"):
            name, found, data = event.partition("\ndata: ")
            if not (found and "\n" not in data and "\n" not in name and name.startswith("event: ")):
                name, data = _fields(event)  # not two plain lines, as nearly all are
            if data or name == "event: error":
                yield self.parsed(data, name[7:])


def _fields(event: str) -> tuple[str, str]:
    """The name, as `event: name`, and the data of an event in any number of lines."""
    name, data = "", []
    for line in event.split("\n"):
        field, _, value = line.partition(":")
        if field == "event":
            name = f"event: {value.removeprefix(' ')}"
        elif field == "data":
            data.append(value.removeprefix(" "))
    return name, "\n".join(data)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def _decoded(data: str) -> Json:
    """The same as `json.loads`, which takes nearly twice as long for things this small."""
    try:
        found, end = _decoder.raw_decode(data)
    except ValueError:
        end = -1
    # Otherwise it has spaces around it, or is none.
    return cast("Json", found if end == len(data) else _decoder.decode(data))
