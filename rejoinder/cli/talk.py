"""`rejoinder chat`: talk to an agent. A terminal gets `terminal.py`, a pipe the simple loop here.

`Conversation` is what both share: the chat (made with the first message), its model, and the words
for coming and going. Stopping a turn is the client's `interrupt`; leaving stops nothing.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import click

from rejoinder.cli.commands import me
from rejoinder.cli.connection import connect, one_sentence
from rejoinder.cli.screen import PlainScreen, Screen, Style
from rejoinder.cli.slash import Done, obey
from rejoinder.cli.telling import Teller
from rejoinder.client import Client, StreamEvent, Turn
from rejoinder.core.errors import Rejected
from rejoinder.core.state import Status

SLASH = "/{}"
"""How an answer begins that is typed into the chat."""
WITHOUT_A_KEY = "scripted:weather-demo"
WITH_A_KEY = "anthropic:claude-sonnet-4-6"


def default_model(environ: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """The model of a chat that names none, and why it is that one."""
    if model := environ.get("REJOINDER_MODEL", "").strip():
        return model, "REJOINDER_MODEL says so"
    if environ.get("ANTHROPIC_API_KEY", "").strip():
        return WITH_A_KEY, "ANTHROPIC_API_KEY is set"
    return WITHOUT_A_KEY, "it needs no key; set ANTHROPIC_API_KEY to talk to Claude"


@dataclass
class Conversation:
    """One person's side of a chat."""

    client: Client
    chat_id: str | None = None
    owner: str = field(default_factory=me)
    model: str = ""
    why: str = ""
    system: str | None = None
    again: str = "rejoinder chat"
    """The command that comes back to this chat, without its id."""
    lasting: bool = True
    """The workers stay when the person leaves."""
    cursor: str | None = None
    events: Iterator[StreamEvent | None] | None = None

    def say(self, text: str) -> Turn:
        """Send a message; the first one makes the chat."""
        if text.startswith("//"):
            text = text[1:]
        if self.chat_id is not None:
            return self.client.send_message(self.chat_id, text)
        turn = self.client.create_chat(text, owner=self.owner, model=self.model, system=self.system)
        self.chat_id = turn.chat_id
        return turn

    def obey(self, typed: str) -> Done | None:
        """Carry out a line that begins with a slash; None if it is something to say."""
        return obey(self.client, self.chat_id, typed)

    def stop(self) -> None:
        """Stop the turn, if there is one."""
        if self.chat_id is not None:
            self.client.interrupt(self.chat_id)

    def greeting(self, *, terminal: bool) -> list[str]:
        """What to say first."""
        if self.chat_id is None:
            lines = [f"A new chat with {self.model} ({self.why})."]
        else:
            chat = self.client.get_chat(self.chat_id)
            lines = [f"Chat {self.chat_id} with {chat['model']}."]
        if terminal:
            lines.append("Ctrl-C stops an answer, and again (or Ctrl-D) leaves. /help says more.")
        return lines

    def goodbye(self, *, busy: bool) -> str:
        """What to say last."""
        if self.chat_id is None:
            return "Nothing was said."
        going_on = f"The chat goes on {'without you' if self.lasting else 'when you are back'}. "
        return f"{going_on if busy else ''}Come back with: {self.again}{self.chat_id}"


@click.command()
@click.argument("chat_id", metavar="[CHAT]", required=False)
@click.option("--owner", help="Whose chat; by default yours.")
@click.option("--model", help="The model of a new chat.")
@click.option("--system", help="The system prompt of a new chat.")
def chat(chat_id: str | None, owner: str | None, model: str | None, system: str | None) -> None:
    """Talk to an agent in the terminal; go on with CHAT, if given."""
    with one_sentence(), connect() as client:
        chosen, why = (model, "as you said") if model else default_model()
        conversation = Conversation(
            client,
            chat_id,
            owner=owner or me(),
            model=chosen,
            why=why,
            system=system,
            again="rejoinder chat ",
        )
        hold(conversation)


def hold(conversation: Conversation) -> None:
    """Hold a conversation with whoever sits there, to its end."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        from rejoinder.cli.terminal import converse  # noqa: PLC0415  # half a second, only here

        converse(conversation)
    else:
        converse_plainly(conversation)


def converse_plainly(conversation: Conversation) -> None:
    """One line of input, one turn; Ctrl-C (SIGINT) stops the turn, or else leaves."""
    screen = PlainScreen()
    teller = Teller(screen, answer_with=SLASH)
    for line in conversation.greeting(terminal=False):
        screen.line(line, Style.DIM)
    try:
        if conversation.chat_id is not None:
            _listen(conversation, teller, screen)
        while line := sys.stdin.readline():
            if line.strip() and (status := _heed(conversation, line.strip(), screen)):
                teller.status = status
                _listen(conversation, teller, screen)
    except KeyboardInterrupt:
        screen.fresh()
    screen.line(conversation.goodbye(busy=teller.busy), Style.DIM)


def _heed(conversation: Conversation, line: str, screen: Screen) -> str | None:
    """Say a line, or do what it commands; the chat's status, if there is something to wait for."""
    try:
        done = conversation.obey(line)
    except Rejected as refusal:
        screen.line(f"✗ {refusal}", Style.BAD)
        return None
    if done is None:
        return conversation.say(line).status
    for each in done.lines:
        screen.line(each)
    return done.status


def _listen(conversation: Conversation, teller: Teller, screen: Screen) -> None:
    """Tell what happens until it is the person's turn. The first Ctrl-C stops what goes on."""
    try:
        _tell_until_rest(conversation, teller)
    except KeyboardInterrupt:
        screen.line("· stopping", Style.WARN)
        conversation.stop()
        _tell_until_rest(conversation, teller)


def _tell_until_rest(conversation: Conversation, teller: Teller) -> None:
    if conversation.events is None:
        conversation.events = conversation.client.follow(
            str(conversation.chat_id), after=conversation.cursor, idle_seconds=2
        )
    try:
        # One reader for the whole conversation: a new one would not know what was told already.
        for event in conversation.events:
            if event is not None:
                teller.tell(event)
                conversation.cursor = event.cursor
            asked = teller.status == Status.REQUIRES_ACTION
            at_rest = bool(teller.status) and (asked or not teller.busy)
            if at_rest and (event is None or _said_all(teller)):
                return
    except KeyboardInterrupt:
        conversation.events = None  # it was cut in the middle of a read
        raise


def _said_all(teller: Teller) -> bool:
    """An error, and what is asked for, are told after the status that they brought."""
    match teller.status:
        case Status.ERROR:
            return teller.error is not None
        case Status.REQUIRES_ACTION:
            return teller.asked
    return True
