"""The events of a streamed answer, from the bytes of its body.

Nearly all events are two short lines with a small object: those are cut and decoded here, all that
came together in one go. The SDK's own decoder, which takes longer than everything else that is done
with an event, reads those that are not. Nothing is decoded before its turn: an event that is broken
takes none with it that came before, and what comes after the last one does not matter.
"""

import json
from collections.abc import Iterator, Mapping
from typing import cast

import httpx2
from anthropic import APIStatusError, Stream

from rejoinder.core.parts import Json
from rejoinder.providers.errors import BrokenStreamError

_decoder = json.JSONDecoder()


class Events:
    """The events of one body, as it comes."""

    def __init__(self, response: httpx2.Response) -> None:
        """Begin with nothing; the response is for errors within its body."""
        self._response = response
        self._rest = b""

    def take(self, chunk: bytes) -> Iterator[Mapping[str, Json]]:
        """The events that are whole with this chunk."""
        whole, blank, rest = (self._rest + chunk).rpartition(b"\n\n")
        if b"\r" in rest or b"\r" in whole:  # other ends of lines, or part of one
            whole, rest = _whole(whole + blank + rest)
        self._rest = rest
        return self._parsed(whole)

    def end(self) -> Iterator[Mapping[str, Json]]:
        """What is left: some servers leave out the blank line after the last event."""
        return self._parsed(self._rest)

    def parsed(self, data: str | bytes) -> Mapping[str, Json]:
        """The object that an event is, unless it is an error."""
        try:
            found = _decoded(data if isinstance(data, str) else _text(data))
        except ValueError as error:
            raise BrokenStreamError("an event is not complete") from error
        if not isinstance(found, dict):
            raise BrokenStreamError("an event is no object")
        if found.get("type") == "error":
            raise APIStatusError("an error within the stream", response=self._response, body=found)
        return found

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
            if found and "\n" not in data and "\n" not in name and name.startswith("event: "):
                yield self.parsed(data)
            elif event.strip():
                for odd in Stream.raw_events(cast("httpx2.Response", _Body(event))):
                    if odd.data:
                        yield self.parsed(odd.data)


def _whole(received: bytes) -> tuple[bytes, bytes]:
    """Events that have come whole, and the rest, where lines may end as they like."""
    waits = received.endswith(b"\r")  # for its line feed, perhaps
    unix = received[: -1 if waits else None].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    whole, _, rest = unix.rpartition(b"\n\n")
    return whole, rest + b"\r" if waits else rest


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


class _Body:
    """One event, as if it were all of a response."""

    def __init__(self, event: str) -> None:
        self._event = event

    def iter_bytes(self) -> Iterator[bytes]:
        yield self._event.encode("utf-8", "surrogatepass") + b"\n\n"
