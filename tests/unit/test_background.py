"""Work in the background: bounded, harmless, and over when the worker goes."""

import asyncio
import logging
import threading
from collections.abc import Iterator

import pytest

from tasks import background
from tasks.background import Background
from tests.waiting import wait_until


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    thread = threading.Thread(target=made.run_forever, daemon=True)
    thread.start()
    yield made
    made.call_soon_threadsafe(made.stop)
    thread.join(5)
    made.close()


async def fails() -> None:
    raise ValueError("no\nluck")


async def exits() -> None:
    raise SystemExit(3)


async def hangs() -> None:
    await asyncio.Event().wait()


def test_what_fails_or_takes_too_long_is_a_line_in_the_log_and_nothing_else(
    loop: asyncio.AbstractEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    some = Background(lambda: loop)
    assert some.start("The failure", fails, 5)
    assert some.start("The exit", exits, 5)
    assert some.start("The wait", hangs, 0.05)
    wait_until(lambda: not some._under_way)
    told = sorted(record.getMessage() for record in caplog.records)
    assert told == [
        "The exit failed: 3",
        "The failure failed: no luck",
        "The wait took longer than 0.05 seconds and was given up",
    ]
    assert loop.is_running(), "nothing may end the loop that every step runs on"


def test_there_is_only_so_much_at_once_and_it_ends_with_the_worker(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "MOST", 2)
    ended = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    some = Background(lambda: loop)
    assert [some.start("It", work, 60) for _ in range(3)] == [True, True, False]
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(5)  # both have begun
    some.cancel()
    wait_until(lambda: len(ended) == 2)
    wait_until(lambda: not some._under_way)
    assert not some.start("It", work, 60), "the worker is going"
