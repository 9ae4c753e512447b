"""Many streams in one loop around the SDK, in three ways, chosen by BENCH_HOW.

`helper`: the SDK's own `messages.stream`. `raw`: `messages.create(stream=True)`, which does less.
`redis`: `raw`, and each chat's words go to a Redis stream every 40 ms, in Rejoinder's format.
"""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from anthropic import AsyncAnthropic
from redis.asyncio import Redis

from rejoinder.batches import MAX_EVENTS
from rejoinder.streams import BATCH_SECONDS
from scripts.bench_parts.contenders.program import serve
from scripts.bench_parts.task import MODEL, Task

Words = Callable[[AsyncAnthropic, list[Any]], AsyncIterator[str]]


async def with_helper(client: AsyncAnthropic, messages: list[Any]) -> AsyncIterator[str]:
    """As the SDK's README does it."""
    async with client.messages.stream(model=MODEL, max_tokens=1000, messages=messages) as stream:
        async for word in stream.text_stream:
            yield word


async def raw(client: AsyncAnthropic, messages: list[Any]) -> AsyncIterator[str]:
    """Typed events, nothing gathered."""
    stream = await client.messages.create(
        model=MODEL, max_tokens=1000, messages=messages, stream=True
    )
    async with stream:
        async for event in stream:
            if event.type == "content_block_delta" and event.delta.type == "text_delta":
                yield event.delta.text


class Publisher:
    """Words on their way to Redis, every 40 ms for all chats together."""

    def __init__(self, redis: Redis) -> None:
        """Begin with none."""
        self._redis = redis
        self._parts: dict[str, list[str]] = {}
        self._over: list[str] = []

    def add(self, chat: str, word: str) -> None:
        """Keep a word for the next batch."""
        self._parts.setdefault(chat, []).append(word)

    def end(self, chat: str) -> None:
        """Tell the reader, after the last word."""
        self._over.append(chat)

    async def run(self) -> None:
        """Send batches for ever."""
        while True:
            await asyncio.sleep(BATCH_SECONDS)
            await self.send()

    async def send(self) -> None:
        """Send what there is."""
        parts, self._parts = self._parts, {}
        over, self._over = self._over, []
        batch: list[tuple[str, list[Any]]] = [
            (chat, ["part", {"of": "text", "text": "".join(words), "n": len(words)}])
            for chat, words in parts.items()
        ]
        batch += [(chat, ["status", {"status": "waiting"}]) for chat in over]
        if not batch:
            return
        pipe = self._redis.pipeline(transaction=False)
        for chat, event in batch:
            body = json.dumps(event, separators=(",", ":"))
            pipe.xadd(chat, {"e": body}, maxlen=MAX_EVENTS, approximate=True)
        await pipe.execute()


@asynccontextmanager
async def publishing() -> AsyncIterator[Publisher]:
    """A publisher at work."""
    async with Redis.from_url(os.environ["BENCH_REDIS_URL"]) as redis:
        publisher = Publisher(redis)
        task = asyncio.create_task(publisher.run())
        yield publisher
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def main(how: str) -> None:
    """Serve tasks with one client; tell when each one's words came."""
    words: Words = with_helper if how == "helper" else raw
    async with AsyncAnthropic(max_retries=0) as client, publishing() as publisher:

        async def run(task: Task) -> tuple[str, float, int, float]:
            last, count, middle = 0.0, 0, 0.0
            async for word in words(client, [{"role": "user", "content": task.text}]):
                last = time.time()
                if count == task.tokens // 2:
                    middle = last
                count += 1
                if how == "redis":
                    publisher.add(task.id, word)
            if how == "redis":
                publisher.end(task.id)
            return task.id, last, count, middle

        await serve(run)


if __name__ == "__main__":
    asyncio.run(main(os.environ["BENCH_HOW"]))
