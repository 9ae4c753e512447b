"""Claude, through Anthropic's own SDK.

Reads the raw events of a streamed answer: the SDK's typed events drop pings and fields they do not
know, and cost more. The SDK's retries are off (there is one retry layer) and so are its spans. Key
and address come from the environment, where the SDK finds them. Converting is done in
`anthropic_request.py`, `anthropic_events.py`, `anthropic_stream.py` and `anthropic_blocks.py`.
"""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from typing import Any, cast

import anyio
import httpx2
from anthropic import AnthropicError, AsyncAnthropic, AsyncStream, DefaultAioHttpClient

from rejoinder.core.failures import FailureKind
from rejoinder.core.model import Batch, ModelRequest, Profile, StreamItem
from rejoinder.core.parts import Json
from rejoinder.providers import anthropic_models
from rejoinder.providers.anthropic_blocks import NAME, wire_name
from rejoinder.providers.anthropic_events import Events
from rejoinder.providers.anthropic_request import body_of
from rejoinder.providers.anthropic_stream import Answer
from rejoinder.providers.details import clean
from rejoinder.providers.errors import ProviderError, classify, failure

# The silence limit of the stream is the real one; this is for a dead line without one.
TIMEOUT = httpx2.Timeout(900.0, connect=10.0)
DRAIN_SECONDS = 1.0
NO_KEY = "There is no API key for Anthropic: set ANTHROPIC_API_KEY for the workers."
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

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Batch, None]:
        """Ask, and yield the answer as it comes."""
        names = {wire_name(tool.name): tool.name for tool in request.tools}
        request_id: str | None = None
        try:
            async with self._response(request) as response:
                request_id = response.headers.get("request-id")
                answer = Answer(names, request_id)
                chunks = _events(response)
                async for events in chunks:
                    batch: list[StreamItem] = []
                    try:
                        some = answer.take(events, batch)
                    except Exception:
                        yield batch
                        raise
                    if some:
                        yield batch
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
                made["http_client"] = DefaultAioHttpClient()
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

    A JSON body instead of a stream is an answer in one event. A body that is not compressed is
    taken as it comes: each layer of httpx that it crosses costs as much as to understand a word.
    """
    events = Events(response)
    if "json" in response.headers.get("content-type", ""):
        message = events.parsed(await response.aread())
        yield iter([{"type": "message_start", "message": message}, {"type": "message_stop"}])
        return
    is_packed = "content-encoding" in response.headers
    raw = response.aiter_bytes() if is_packed else cast("httpx2.AsyncByteStream", response.stream)
    async for chunk in raw:
        yield events.take(chunk)
    yield events.end()


async def _drain(events: AsyncIterator[object]) -> None:
    """Read to the end of the body, so that the connection can be used again."""
    with contextlib.suppress(Exception), anyio.move_on_after(DRAIN_SECONDS):
        async for _ in events:
            pass


def _without_key(detail: str | None = None) -> ProviderError:
    return ProviderError(failure(FailureKind.MISSING_KEY, NAME, message=NO_KEY, detail=detail))


def _has_credentials(client: AsyncAnthropic) -> bool:
    if client.api_key or client.auth_token or client.credentials:
        return True
    sent = {name.lower() for name in client.default_headers}
    return not sent.isdisjoint({"authorization", "x-api-key"})
