"""The chat on a terminal: the answer streams above, what is going on stands over the prompt.

Finished lines are printed and scroll away like any output; the line that is being written, running
tools and the status are part of the prompt, which is redrawn as they change. So one can type, and
send, at any time: a message sent while the agent is busy is queued.
"""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import click
from celery.exceptions import TimeoutError as NoAnswer
from prompt_toolkit import PromptSession
from prompt_toolkit.application import run_in_terminal
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from rejoinder.cli.connection import Failed, one_sentence
from rejoinder.cli.screen import SPIN, Live, Style, painted, printable, width
from rejoinder.cli.talk import SLASH, Conversation
from rejoinder.cli.telling import MARK_USER, Teller
from rejoinder.core.errors import Refused
from rejoinder.core.state import Status
from rejoinder.streams import StreamEvent

SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
REDRAW_SECONDS = 0.1
IDLE_SECONDS = 1.0
LEAVE_SECONDS = 3 * IDLE_SECONDS


class PromptScreen:
    """Finished lines, to be printed; and what belongs over the prompt."""

    def __init__(self) -> None:
        """Begin empty."""
        self._done: list[str] = []
        self._open = ""
        self._style = Style.PLAIN
        self._live: Live = ()
        self.notice = ""
        """Said below what is going on."""

    def write(self, text: str, style: Style = Style.PLAIN) -> None:
        """Go on in the current line; full lines are done."""
        self._style = style
        self._open += printable(text)
        *lines, self._open = self._open.split("\n")
        self._done += [painted(line, style) for line in lines]
        while len(self._open) > width():
            cut = self._open.rfind(" ", 1, width() - 1) + 1 or width() - 1
            self._done.append(painted(self._open[:cut].rstrip(), style))
            self._open = self._open[cut:]

    def line(self, text: str, style: Style = Style.PLAIN) -> None:
        """Add a line of its own."""
        self.fresh()
        self._done += [painted(line, style) for line in printable(text).split("\n")]

    def fresh(self) -> None:
        """End the current line."""
        if self._open:
            self._done.append(painted(self._open, self._style))
            self._open = ""

    def live(self, lines: Live) -> None:
        """Say what is going on."""
        self._live = lines

    def take(self) -> list[str]:
        """The lines that are done, once."""
        done, self._done = self._done, []
        return done

    def prompt(self) -> ANSI:
        """What stands over the input line, and its arrow."""
        spin = SPINNER[int(time.monotonic() / REDRAW_SECONDS) % len(SPINNER)]
        lines = [painted(self._open, self._style)] if self._open else []
        for text, style in self._live:
            lines.append(painted(text.replace(SPIN, spin)[: width() - 1], style))
        if self.notice:
            lines.append(painted(f"{spin} {self.notice}", Style.WARN))
        return ANSI("\n".join([*lines, painted(f"{MARK_USER} ", Style.USER)]))


class TerminalChat:
    """One conversation on one terminal: a prompt, a listener and somebody who runs errands."""

    def __init__(self, conversation: Conversation) -> None:
        """Begin before the first word."""
        self.conversation = conversation
        self.screen = PromptScreen()
        self.teller = Teller(self.screen, answer_with=SLASH)
        self.stopping = False
        self.failure: Failed | None = None
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[StreamEvent | Failed] = asyncio.Queue()
        self._errands = ThreadPoolExecutor(1, "errands")  # one: messages keep their order
        self._closed = threading.Event()
        self._task: asyncio.Task[None] | None = None
        self._listener: threading.Thread | None = None
        self._session: PromptSession[str] = PromptSession(
            self.screen.prompt,
            key_bindings=self._keys(),
            erase_when_done=True,
            history=InMemoryHistory(),
        )

    async def run(self) -> None:
        """Prompt until the person leaves."""
        async with self._telling():
            if self.conversation.chat_id is not None:
                self._listen()
            while self.failure is None:
                try:
                    text = await self._session.prompt_async()
                except (EOFError, KeyboardInterrupt):
                    break
                if text.strip():
                    await self._errand(lambda text=text: self._say(text.strip()))  # type: ignore[misc]
        if self.failure is not None:
            raise self.failure

    # -- what the person does -----------------------------------------------------------------

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("c-c")
        def _(event: KeyPressEvent) -> None:
            if self.teller.busy and not self.stopping:
                self.stopping = True
                self.screen.notice = "Ctrl-C again leaves"
                self._task = self._loop.create_task(self._errand(self.conversation.stop))
            elif event.current_buffer.text and not self.stopping:
                event.current_buffer.reset()
            else:
                event.app.exit(exception=KeyboardInterrupt())

        return keys

    def _say(self, text: str) -> tuple[str, ...]:
        done = self.conversation.obey(text)
        if done is not None:
            return done.lines
        first = self.conversation.chat_id is None
        turn = self.conversation.say(text)
        if first:
            self._listen()
        if not self.teller.busy:
            self.teller.status = turn.status
        return ()

    async def _errand(self, act: Callable[[], Any]) -> None:
        """Do something that takes a moment, elsewhere; say if it was refused."""
        try:
            for line in await self._loop.run_in_executor(self._errands, act) or ():
                self.screen.line(line)
        except Refused as refusal:
            self.screen.line(f"✗ {refusal}", Style.BAD)
        except NoAnswer:
            self.screen.line("✗ no worker answered; it may still be done later", Style.BAD)
        await self._print()

    # -- what the chat does -------------------------------------------------------------------

    def _listen(self) -> None:
        self._listener = threading.Thread(target=self._follow, name="listener", daemon=True)
        self._listener.start()

    def _follow(self) -> None:
        """Hand events to the loop, from a thread of its own."""
        chat_id = str(self.conversation.chat_id)
        try:
            with one_sentence():
                for event in self.conversation.client.follow(chat_id, idle_seconds=IDLE_SECONDS):
                    if self._closed.is_set():
                        return
                    if event is not None:
                        self._loop.call_soon_threadsafe(self._events.put_nowait, event)
        except Failed as failure:
            if not self._closed.is_set():
                self._loop.call_soon_threadsafe(self._events.put_nowait, failure)

    @asynccontextmanager
    async def _telling(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self._tell()), asyncio.create_task(self._spin())]
        try:
            yield
        finally:
            self._closed.set()
            for task in tasks:
                task.cancel()
            self.screen.live(())
            self.screen.notice = ""
            self.screen.fresh()
            await self._print()
            self._errands.shutdown(wait=False, cancel_futures=True)
            if self._listener is not None:
                await asyncio.to_thread(self._listener.join, LEAVE_SECONDS)

    async def _spin(self) -> None:
        while True:
            await asyncio.sleep(REDRAW_SECONDS)
            if self.teller.busy:
                self._session.app.invalidate()

    async def _tell(self) -> None:
        while True:
            event = await self._events.get()
            if isinstance(event, Failed):
                self.failure = event
                self._session.app.exit(exception=EOFError())
                return
            self.teller.tell(event)
            if event.kind == "status" and event.data["status"] != Status.INTERRUPTING:
                self.stopping, self.screen.notice = False, ""
            if self._events.empty():
                await self._print()

    async def _print(self) -> None:
        """Print what is done, over the prompt."""
        if lines := self.screen.take():
            await run_in_terminal(lambda: click.echo("\n".join(lines)))
        else:
            self._session.app.invalidate()


def converse(conversation: Conversation) -> None:
    """Hold the conversation."""
    # Finished lines are printed over the prompt, wherever that is: nobody need ask the terminal.
    os.environ.setdefault("PROMPT_TOOLKIT_NO_CPR", "1")
    for line in conversation.greeting(terminal=True):
        click.echo(painted(line, Style.DIM))
    click.echo()

    async def talk() -> bool:
        chat = TerminalChat(conversation)
        await chat.run()
        return chat.teller.busy

    busy = asyncio.run(talk())
    click.echo(painted(conversation.goodbye(busy=busy), Style.DIM))
