"""A stand-in for Anthropic's API, for real workers: it answers by what the message says.

A message with `[slow]` is answered with a few words, and no end; with `[break]`, the first answer
breaks off. A title for one with `[held]` comes when the test lets it, for `[broken]` never.
"""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tasks.titles import INSTRUCTIONS
from tests.integration.sse import Connection, end, serving, start, text

if TYPE_CHECKING:
    from collections.abc import Iterator

MODEL = "anthropic:claude-sonnet-5"
USAGE = {
    "input_tokens": 1_000,
    "cache_read_input_tokens": 5_000,
    "cache_creation_input_tokens": 2_000,
    "output_tokens": 1,
}
ANSWER_MICROS = 1_000 * 2 + 5_000 // 5 + 2_000 * 5 // 2 + 300 * 10
TITLE_MICROS = 50 * 2 + 10 * 10


@dataclass
class Claude:
    """What was asked for, and the say over what is held."""

    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    _may: threading.Event = field(default_factory=threading.Event)

    @property
    def env(self) -> dict[str, str]:
        """The environment of workers that shall talk to it."""
        return {"ANTHROPIC_BASE_URL": self.url, "ANTHROPIC_API_KEY": "none"}

    def asked(self, words: str, *, title: bool = False) -> int:
        """How often it was asked about a message with these words."""
        return sum(
            words in json.dumps(request["messages"]) and _is_title(request) is title
            for request in self.requests
        )

    def let_go(self) -> None:
        """Give the titles that were held."""
        self._may.set()

    def hold(self) -> None:
        """Hold titles from now on."""
        self._may.clear()

    async def answer(self, connection: Connection) -> None:
        """Answer one request; a worker that was stopped does not listen."""
        with suppress(ConnectionError):
            await self._answer(connection)

    async def _answer(self, connection: Connection) -> None:
        self.requests.append(connection.request)
        said = json.dumps(connection.request["messages"])
        if _is_title(connection.request):
            await self._title(connection, said)
            return
        await connection.begin()
        await connection.send(start(usage=USAGE) + text(0, "Hel", "lo"))
        if "[slow]" in said:
            await connection.until_left()
        elif "[break]" not in said or self.requests.count(connection.request) > 1:
            await connection.send(end(output_tokens=300))

    async def _title(self, connection: Connection, said: str) -> None:
        if "[broken]" in said:
            await connection.refuse(500, {"type": "error", "error": {"type": "api_error"}})
            return
        if "[held]" in said:
            await asyncio.to_thread(self._may.wait, 60)
        await connection.begin()
        words = text(0, '"A fine ', 'title."\n')
        usage = {"input_tokens": 50, "output_tokens": 1}
        await connection.send(start(usage=usage) + words + end(output_tokens=10))


def _is_title(request: dict[str, Any]) -> bool:
    return INSTRUCTIONS in json.dumps(request.get("system", ""))


@contextmanager
def claude_nearby() -> Iterator[Claude]:
    """Serve on the loopback, in a thread."""
    claude = Claude()
    ready, over = threading.Event(), threading.Event()

    async def serve() -> None:
        async with serving(claude.answer) as server:
            claude.url = server.url
            ready.set()
            await asyncio.to_thread(over.wait)
            claude.let_go()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield claude
    finally:
        over.set()
        thread.join(10)
