"""The commands: each a few lines over the client. The terminal chat is in `talk.py`."""

import getpass
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import click

from rejoinder.cli.connection import Failed, connect, one_sentence
from rejoinder.cli.screen import PlainScreen, Style
from rejoinder.cli.steps import lines, steps_of
from rejoinder.cli.telling import Teller
from rejoinder.client import Client, Turn, TurnFailed
from rejoinder.core.messages import Approval, TurnState, WhenBusy
from rejoinder.core.state import AT_REST, Status
from rejoinder.streams import StreamEvent

OWNER = click.option("--owner", help="Whose chats; by default yours.")
AS_JSON = click.option("--json", "as_json", is_flag=True, help="For programs.")


def me() -> str:
    """The owner of chats that are made here."""
    with suppress(OSError, KeyError):
        return getpass.getuser()
    return "you"


@click.command()
@click.argument("text")
@click.option("--chat", "chat_id", help="Send to this chat; without it, a new one is made.")
@OWNER
@click.option("--model", help="For example scripted:weather-demo.")
@click.option("--system", help="The system prompt of a new chat.")
@click.option(
    "--when-busy",
    type=click.Choice([each.value for each in WhenBusy]),
    default=WhenBusy.QUEUE.value,
    show_default=True,
    help="If the chat is at work: queue the message, steer the turn that runs with it, interrupt "
    "the turn, or refuse.",
)
@click.option("--agents", is_flag=True, help="A new chat may have sub-agents work for it.")
@click.option("--key", help="A repeated send with the same key is done once.")
@click.option("--wait", is_flag=True, help="Wait for the answer, and print it.")
@click.option("--follow", is_flag=True, help="Show the answer as it is written.")
@AS_JSON
def send(  # noqa: PLR0913  # the options of a command
    text: str,
    *,
    chat_id: str | None,
    owner: str | None,
    model: str | None,
    system: str | None,
    when_busy: str,
    agents: bool,
    key: str | None,
    wait: bool,
    follow: bool,
    as_json: bool,
) -> None:
    """Create a chat with TEXT, or send TEXT to one; prints the chat's id."""
    if text == "-":
        text = sys.stdin.read()
    choose(wait=wait, follow=follow)
    with one_sentence(), connect() as client:
        if chat_id and (owner or system or agents):
            raise Failed(
                "--owner, --system and --agents are for new chats: leave them out, or --chat"
            )
        start = client.cursor(chat_id) if chat_id else None
        turn = (
            client.send_message(chat_id, text, when_busy=when_busy, model=model, key=key)
            if chat_id
            else client.create_chat(
                text,
                owner=owner or me(),
                model=model or "",
                system=system,
                options={"agents": True} if agents else None,
                key=key,
            )
        )
        act_on_turn(client, turn, start, wait=wait, follow=follow, as_json=as_json)


def choose(*, wait: bool, follow: bool) -> None:
    """Refuse to do both."""
    if wait and follow:
        raise Failed("--wait prints the answer, --follow shows it come: choose one")


def act_on_turn(  # noqa: PLR0913  # the options of a command
    client: Client, turn: Turn, start: str | None, *, wait: bool, follow: bool, as_json: bool
) -> None:
    """Show what becomes of a turn that was just begun, as far as that was asked for."""
    if wait:
        _print_answer(turn, as_json=as_json)
    elif follow:
        show_events(client, turn.chat_id, start, as_json=as_json, until_rest=True)
        click.echo(f"Go on with: rejoinder send --chat {turn.chat_id} …", err=True)
    elif as_json:
        print_json({n: v for n, v in vars(turn).items() if n != "client"})
    else:
        click.echo(turn.chat_id)
        if sys.stdout.isatty():
            queued = ", in its queue" if turn.queued_id else ""
            click.echo(f"{turn.status}{queued}; see it: rejoinder tail {turn.chat_id}", err=True)


@click.command()
@click.argument("chat_id", metavar="CHAT")
@click.option("--after", help="Go on from this cursor, which an earlier `tail` gave.")
@click.option("--until-rest", is_flag=True, help="End when the chat is at rest.")
@AS_JSON
def tail(chat_id: str, after: str | None, *, until_rest: bool, as_json: bool) -> None:
    """Follow CHAT: what was said, then what happens, live. Ctrl-C ends it."""
    with one_sentence(), connect() as client:
        show_events(client, chat_id, after, as_json=as_json, until_rest=until_rest)


@click.command()
@click.argument("chat_id", metavar="CHAT")
@click.option("--steps", is_flag=True, help="Only what its steps took: when, where, how long.")
@AS_JSON
def show(chat_id: str, *, steps: bool, as_json: bool) -> None:
    """Show CHAT: its status, messages, agents, queue and error."""
    with one_sentence(), connect() as client:
        if steps:
            _show_steps(steps_of(client, chat_id), as_json=as_json)
            return
        chat = client.get_chat(chat_id)
        messages = list(_messages(client, chat_id))
    if as_json:
        print_json({**chat, "messages": messages})
        return
    screen = PlainScreen()
    screen.line(f"chat {chat['id']}", Style.BOLD)
    facts = {"title": chat["title"], "owner": chat["owner"], "model": chat["model"]}
    facts |= {"status": chat["status"] + (", archived" if chat["archived"] else "")}
    facts |= {"labels": chat["labels"], "updated": chat["updated_at"][:19]}
    for name, value in facts.items():
        if value:
            screen.line(f"  {name:8} {value}", Style.DIM)
    teller = Teller(screen)
    for message in messages:
        teller.tell(StreamEvent("", "message", message))
    for child in chat["children"]:
        style = Style.BAD if child["status"] == Status.ERROR else Style.DIM
        screen.line(f"  agent {child['id']}  {child['status']:15}  {child['title']}", style)
    for queued in chat["queue"]:
        text = "".join(part.get("text", "") for part in queued["parts"])
        how = "steers" if queued["steer"] else "queued"
        screen.line(f"  {how} ({queued['id']}): {text}", Style.WARN)
    for call in chat["open_calls"]:
        waits = "approval" if call["approval"] == Approval.WANTED else call["kind"]
        screen.line(f"  open call: {call['name']} ({call['call_id']}, {waits})", Style.WARN)
    if chat["last_error"]:
        teller.tell(StreamEvent("", "error", chat["last_error"]))


def _show_steps(steps: list[Mapping[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json(steps)
    else:
        for line in lines(steps):
            click.echo(line)


@click.command()
@OWNER
@click.option("--status", type=click.Choice([each.value for each in Status]), help="Only these.")
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="Only with this one.")
@click.option("--title", help="Only with this in their title.")
@click.option("--archived", is_flag=True, help="Only those that were put away.")
@click.option("--all", "all_", is_flag=True, help="Also those that were put away.")
@click.option("--roots", is_flag=True, help="No children.")
@click.option("--parent", "parent_id", metavar="CHAT", help="Only the children of this chat.")
@click.option("--tree", "root_id", metavar="CHAT", help="Only this chat and all below it.")
@click.option("--before", help="Go on behind this chat: the last one of a page.")
@click.option("--limit", type=click.IntRange(1, 200), default=50, show_default=True)
@AS_JSON
def ls(
    owner: str | None,
    *,
    labels: tuple[str, ...],
    archived: bool,
    all_: bool,
    as_json: bool,
    **filters: Any,
) -> None:
    """List an owner's chats, the newest first."""
    owner = owner or me()
    with one_sentence(), connect() as client:
        filters["labels"] = dict(parse_labels(labels))
        filters["archived"] = None if all_ else archived
        found = client.list_chats(owner, **filters)
    if as_json:
        print_json(found)
        return
    if not found["chats"]:
        click.echo(f"{owner} has no such chats.", err=True)
    screen = PlainScreen()
    for chat in found["chats"]:
        queued = f"  {chat['queue_length']} queued" if chat["queue_length"] else ""
        when = chat["updated_at"][:19].replace("T", " ")
        style = Style.BAD if chat["status"] == Status.ERROR else Style.PLAIN
        status = f"{chat['status']}{'*' if chat['archived'] else ''}"
        line = f"{chat['id']}  {status:15}  {when}  {chat['model']}{queued}  {chat['title'] or ''}"
        screen.line(line.rstrip(), style)
    if found["next"]:
        click.echo(f"There are more: --before {found['next']}", err=True)


@click.command()
@click.argument("chat_id", metavar="CHAT")
@click.option("--wait", is_flag=True, help="Until the chat has come to rest.")
def interrupt(chat_id: str, *, wait: bool) -> None:
    """Stop what CHAT is doing; what was written stays."""
    with one_sentence(), connect() as client:
        click.echo(client.interrupt(chat_id, wait=wait))


@click.command()
@click.argument("chat_id", metavar="CHAT")
@click.option("--wait", is_flag=True, help="Until the summary is stored.")
@click.option("--follow", is_flag=True, help="Show how it goes.")
def compact(chat_id: str, *, wait: bool, follow: bool) -> None:
    """Have CHAT summarised for the model; people still see all of it. Also after an error."""
    with one_sentence(), connect() as client:
        start = client.cursor(chat_id)
        turn = client.compact(chat_id)
        if follow:
            show_events(client, chat_id, start, as_json=False, until_rest=True)
        elif wait:
            click.echo(_awaited(turn)["state"])
        else:
            click.echo(turn.status)


def show_events(
    client: Client, chat_id: str, after: str | None, *, as_json: bool, until_rest: bool
) -> None:
    """Print events until Ctrl-C, or until the chat is at rest; exit 1 if it rests in an error."""
    teller = Teller(PlainScreen(), progress=True, answer_with=f"rejoinder {{}} {chat_id}")
    cursor = after
    try:
        for event in client.follow(chat_id, after=after):
            if event is None:
                continue
            cursor = event.cursor
            if as_json:
                print_json(vars(event), indent=None)
            else:
                teller.tell(event)
            if until_rest and event.kind == "status" and event.data["status"] in AT_REST:
                if event.data["status"] == Status.ERROR:
                    _tell_the_error(client, chat_id, teller, as_json=as_json)
                return
    except KeyboardInterrupt:
        if not as_json:
            click.echo(f"\nGo on with: rejoinder tail {chat_id} --after {cursor}", err=True)


def _tell_the_error(client: Client, chat_id: str, teller: Teller, *, as_json: bool) -> None:
    error = client.get_chat(chat_id)["last_error"] or {}
    if not as_json:
        teller.tell(StreamEvent("", "error", error))
    raise click.exceptions.Exit(1)


def _awaited(turn: Turn) -> dict[str, Any]:
    try:
        return turn.get()
    except TurnFailed as failure:
        raise Failed(f"{failure.args[0]} ({failure.kind})") from None


def _print_answer(turn: Turn, *, as_json: bool) -> None:
    answer = _awaited(turn)
    if as_json:
        print_json(answer)
    else:
        PlainScreen().line(answer["text"] or "")
    if answer["state"] != TurnState.FINISHED:
        raise Failed(f"the turn was {answer['state']} before its end")


def _messages(client: Client, chat_id: str) -> Iterator[Mapping[str, Any]]:
    page: int | None = 0
    while page is not None:
        found = client.get_messages(chat_id, after=page, limit=200)
        yield from found["messages"]
        page = found["next"]


def parse_labels(given: tuple[str, ...]) -> list[tuple[str, str]]:
    """NAME=VALUE, as often as given."""
    pairs = [each.partition("=") for each in given]
    if wrong := [name for name, sign, _ in pairs if not (name and sign)]:
        raise Failed(f"{wrong[0] or '='!r} is no label: write NAME=VALUE")
    return [(name, value) for name, _, value in pairs]


def print_json(value: object, indent: int | None = 2) -> None:
    """Print a value for programs."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, default=str)
    click.echo(
        text.encode("utf-8", "backslashreplace").decode()
    )  # lone surrogates, as JSON escapes
