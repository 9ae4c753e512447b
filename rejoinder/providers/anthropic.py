"""Claude, through Anthropic's own SDK.

Reads the raw events of a streamed answer: the SDK's typed events drop pings and fields they do not
know, and cost more. The SDK's retries are off (there is one retry layer) and so are its spans. Key
and address come from the environment, where the SDK finds them. Converting is done in
`anthropic_request.py`, `anthropic_stream.py` and `anthropic_blocks.py`.
"""

import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from typing import Any, cast

import anyio
import httpx2
from anthropic import AnthropicError, APIStatusError, AsyncAnthropic, AsyncStream, Stream

from rejoinder.core.failures import FailureKind
from rejoinder.core.model import LiveItem, ModelRequest, Profile, Progress
from rejoinder.core.parts import Json
from rejoinder.providers import anthropic_models
from rejoinder.providers.anthropic_blocks import NAME, wire_name
from rejoinder.providers.anthropic_request import body_of
from rejoinder.providers.anthropic_stream import Answer
from rejoinder.providers.details import clean
from rejoinder.providers.errors import BrokenStreamError, ProviderError, classify, failure
from rejoinder.providers.http_transport import http_client

# The silence limit of the stream is the real one; this is for a dead line without one.
TIMEOUT = httpx2.Timeout(900.0, connect=10.0)
DRAIN_SECONDS = 1.0
NO_KEY = "There is no API key for Anthropic: set ANTHROPIC_API_KEY for the workers."
_NOTHING = (Progress(),)
_decode = json.JSONDecoder().decode
NO_STREAM = "Anthropic answered with something else than a stream: check ANTHROPIC_BASE_URL."


class AnthropicProvider:
    """The Messages API. One client, made when it is first needed."""

    name = NAME

    def __init__(self, **client_options: Any) -> None:  # the SDK's own
        """Take options of `AsyncAnthropic`, for those whom the environment does not suit."""
        self._options = client_options
        self._client: AsyncAnthropic | None = None

    def profile(self, model: str) -> Profile:
        """What a model can do."""
        return anthropic_models.profile(model)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[LiveItem, None]:
        """Ask, and yield the answer as it comes."""
        names = {wire_name(tool.name): tool.name for tool in request.tools}
        request_id: str | None = None
        try:
            async with self._response(request) as response:
                request_id = response.headers.get("request-id")
                answer = Answer(names, request_id)
                chunks = _events(response)
                async for events in chunks:
                    for event in events:
                        for item in answer.take(event) or _NOTHING:
                            yield item
                        if answer.ended:
                            break
                    if answer.ended:
                        break
                answer.require_end()
                await _drain(chunks)
        except Exception as error:
            raise classify(error, NAME, request_id=request_id) from error

    async def aclose(self) -> None:
        """Close all connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _response(
        self, request: ModelRequest
    ) -> contextlib.AbstractAsyncContextManager[httpx2.Response]:
        body = body_of(request, self.profile(request.model))
        betas = request.options.extra.get("betas")
        headers = {"anthropic-beta": ",".join(map(str, betas))} if isinstance(betas, list) else {}
        return _asked(self._connected(), body, headers)

    def _connected(self) -> AsyncAnthropic:
        if self._client is None:
            made = {"max_retries": 0, "timeout": TIMEOUT, "open_telemetry": False}
            if "http_client" not in self._options:
                made["http_client"] = http_client()
            try:
                client = AsyncAnthropic(**cast("Any", {**made, **self._options}))
            except AnthropicError as error:  # credentials that cannot be read
                raise _without_key(clean(str(error))) from error
            if not _has_credentials(client):
                raise _without_key()
            self._client = client
        return self._client


@contextlib.asynccontextmanager
async def _asked(
    client: AsyncAnthropic, body: bytes, headers: Mapping[str, str]
) -> AsyncIterator[httpx2.Response]:
    """The HTTP response to one request, closed on the way out.

    The SDK's `messages.create` would look at every message, twice, and write the JSON itself, which
    takes longer than to send it; and its named arguments may lag behind the API.
    """
    response = cast(
        "httpx2.Response",
        await client.post(
            "/v1/messages",
            cast_to=httpx2.Response,
            content=body,
            options={"headers": dict(headers)},
            stream=True,
            stream_cls=AsyncStream[object],
        ),
    )
    try:
        kind = response.headers.get("content-type", "")
        if "event-stream" not in kind and "json" not in kind and kind:
            raise ProviderError(
                failure(
                    FailureKind.CONFIG,
                    NAME,
                    message=NO_STREAM,
                    detail=f"content-type: {kind}",
                    status_code=response.status_code,
                    request_id=response.headers.get("request-id"),
                )
            )
        yield response
    finally:
        await response.aclose()


async def _events(response: httpx2.Response) -> AsyncIterator[Iterator[Mapping[str, Json]]]:
    """The events, as JSON, those together that came together.

    A JSON body instead of a stream is an answer in one event.
    """
    if "json" in response.headers.get("content-type", ""):
        message = _parsed(await response.aread(), response)
        yield iter([{"type": "message_start", "message": message}, {"type": "message_stop"}])
        return
    rest = b""
    async for chunk in response.aiter_bytes():
        whole, blank, rest = (rest + chunk).rpartition(b"\n\n")
        if b"\r" in rest or b"\r" in whole:  # other ends of lines, or part of one
            whole, rest = _whole_events(whole + blank + rest)
        yield (_parsed(data, response) for data in _data(whole))
    # Some servers leave out the blank line after the last event.
    yield (_parsed(data, response) for data in _data(rest))


def _whole_events(received: bytes) -> tuple[bytes, bytes]:
    """Events that have come whole, and the rest, where lines may end as they like."""
    waits = received.endswith(b"\r")  # for its line feed, perhaps
    unix = received[: -1 if waits else None].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    whole, _, rest = unix.rpartition(b"\n\n")
    return whole, rest + b"\r" if waits else rest


def _data(events: bytes) -> Iterator[str | bytes]:
    """The data of each event.

    Nearly all are two short lines; the SDK's own decoder, which takes longer than everything else
    that is done with an event, reads those that are not.
    """
    for event in events.split(b"\n\n"):
        name, found, data = event.partition(b"\ndata: ")
        if found and b"\n" not in data and b"\n" not in name and name.startswith(b"event: "):
            yield data
        elif event.strip():
            for odd in Stream.raw_events(cast("httpx2.Response", _Body(event))):
                if odd.data:
                    yield odd.data


class _Body:
    """One event, as if it were all of a response."""

    def __init__(self, event: bytes) -> None:
        self._event = event

    def iter_bytes(self) -> Iterator[bytes]:
        yield self._event + b"\n\n"


async def _drain(events: AsyncIterator[object]) -> None:
    """Read to the end of the body, so that the connection can be used again."""
    with contextlib.suppress(Exception), anyio.move_on_after(DRAIN_SECONDS):
        async for _ in events:
            pass


def _parsed(data: str | bytes, response: httpx2.Response) -> Mapping[str, Json]:
    try:
        found = _decode(data if isinstance(data, str) else data.decode("utf-8", "surrogatepass"))
    except ValueError as error:
        raise BrokenStreamError("an event is not complete") from error
    if not isinstance(found, Mapping):
        raise BrokenStreamError("an event is no object")
    if found.get("type") == "error":
        raise APIStatusError("an error within the stream", response=response, body=found)
    return found


def _without_key(detail: str | None = None) -> ProviderError:
    return ProviderError(failure(FailureKind.MISSING_KEY, NAME, message=NO_KEY, detail=detail))


def _has_credentials(client: AsyncAnthropic) -> bool:
    if client.api_key or client.auth_token or client.credentials:
        return True
    sent = {name.lower() for name in client.default_headers}
    return not sent.isdisjoint({"authorization", "x-api-key"})
