"""A limit on how long a provider may say nothing in the middle of an answer.

Every batch counts as a sign of life, also an empty one, which goes no further than here. The limit
is on each gap, not on the whole: a long answer is no fault.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

from rejoinder.core.failures import FailureKind
from rejoinder.core.messages import Failure
from rejoinder.core.model import Batch
from rejoinder.providers.errors import ProviderError

DEFAULT_SECONDS = 600.0


async def with_silence_limit(
    stream: AsyncIterator[Batch], seconds: float = DEFAULT_SECONDS
) -> AsyncGenerator[Batch, None]:
    """The same stream without its signs of life; `stream_silence` if there are none for so long.

    Closing this closes the stream, too: use it with `contextlib.aclosing`.
    """
    watch = _Watch(seconds)
    try:
        while True:
            watch.since = watch.loop.time()
            try:
                batch = await anext(stream)
            except StopAsyncIteration:
                return
            except asyncio.CancelledError:
                watch.judge()
                raise
            finally:
                watch.since = None
            if batch:
                yield batch
    finally:
        watch.timer.cancel()
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()


class _Watch:
    """One timer for a whole stream: a cancel scope for each batch costs more than the batch."""

    def __init__(self, seconds: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.since: float | None = None
        """When the wait for the next batch began; None between two."""
        self._seconds = seconds
        self._task = asyncio.current_task()
        self._fired = False
        self.timer = self.loop.call_later(seconds, self._look)

    def _look(self) -> None:
        since = self.loop.time() if self.since is None else self.since
        left = since + self._seconds - self.loop.time()
        if left > 0:
            self.timer = self.loop.call_later(left, self._look)
        elif self._task is not None:
            self._fired = True
            self._task.cancel()

    def judge(self) -> None:
        """Tell silence from a cancellation that is somebody else's."""
        if self._fired and self._task is not None and self._task.uncancel() == 0:
            raise ProviderError(_silent(self._seconds))


def _silent(seconds: float) -> Failure:
    return Failure(
        FailureKind.STREAM_SILENCE.value,
        f"The model said nothing for {seconds:g} seconds.",
        retryable=True,
    )
