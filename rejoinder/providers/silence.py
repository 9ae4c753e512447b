"""A limit on how long a provider may say nothing in the middle of an answer.

Every item counts as a sign of life, also a `Progress`, which goes no further than here. The limit
is on each gap, not on the whole: a long answer is no fault.
"""

from collections.abc import AsyncGenerator, AsyncIterator

import anyio

from rejoinder.core.failures import FailureKind
from rejoinder.core.messages import Failure
from rejoinder.core.model import LiveItem, Progress, StreamItem
from rejoinder.providers.errors import ProviderError

DEFAULT_SECONDS = 600.0


async def with_silence_limit(
    stream: AsyncIterator[LiveItem], seconds: float = DEFAULT_SECONDS
) -> AsyncGenerator[StreamItem, None]:
    """The same stream without its signs of life; `stream_silence` if there are none for so long.

    Closing this closes the stream, too: use it with `contextlib.aclosing`.
    """
    try:
        while True:
            item: LiveItem | None = None
            with anyio.move_on_after(seconds) as gap:
                try:
                    item = await anext(stream)
                except StopAsyncIteration:
                    return
            if gap.cancelled_caught or item is None:
                raise ProviderError(_silent(seconds))
            if not isinstance(item, Progress):
                yield item
    finally:
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()


def _silent(seconds: float) -> Failure:
    return Failure(
        FailureKind.STREAM_SILENCE.value,
        f"The model said nothing for {seconds:g} seconds.",
        retryable=True,
    )
