"""Commands for a chat's messages: those that wait, those that were said, what becomes of them."""

import click

from rejoinder.cli.commands import AS_JSON, act_on_turn, choose, parse_labels, print_json
from rejoinder.cli.connection import Failed, connect, one_sentence
from rejoinder.cli.screen import PlainScreen, Style
from rejoinder.cli.telling import Teller
from rejoinder.client import StreamEvent

CHAT = click.argument("chat_id", metavar="CHAT")
QUEUED = click.argument("queued_id", metavar="ID", type=int)
FOLLOW = click.option("--follow", is_flag=True, help="Show the answer as it is written.")
WAIT = click.option("--wait", is_flag=True, help="Wait for the answer, and print it.")


def words_of(message: object) -> str:
    """The text of a message's parts; what is not text by its type."""
    parts = message["parts"] if isinstance(message, dict) else []
    return " ".join(part.get("text") or f"[{part.get('type')}]" for part in parts)


@click.group()
def queue() -> None:
    """Look at the messages that wait in a chat's queue, delete one, or let one come next."""


@queue.command("list")
@CHAT
@AS_JSON
def queue_list(chat_id: str, *, as_json: bool) -> None:
    """List the messages that wait, the next one first."""
    with one_sentence(), connect() as client:
        waiting = client.get_chat(chat_id)["queue"]
    if as_json:
        print_json(waiting)
        return
    if not waiting:
        click.echo("Nothing waits.", err=True)
    screen = PlainScreen()
    for message in waiting:
        facts = [message["model"] or "", "joins the turn" if message["steer"] else ""]
        more = "".join(f" ({fact})" for fact in facts if fact)
        screen.line(f"{message['id']}{more}: {words_of(message)}")


@queue.command("delete")
@CHAT
@QUEUED
def queue_delete(chat_id: str, queued_id: int) -> None:
    """Take the message with this ID out of the queue."""
    with one_sentence(), connect() as client:
        click.echo(client.delete_queued(chat_id, queued_id)["status"])


@queue.command("promote")
@CHAT
@QUEUED
def queue_promote(chat_id: str, queued_id: int) -> None:
    """Let the message with this ID come next, now: the turn that runs is stopped for it."""
    with one_sentence(), connect() as client:
        click.echo(client.promote_queued(chat_id, queued_id)["status"])


@click.command()
@CHAT
@click.argument("message_id", metavar="MESSAGE", type=int)
@click.argument("text")
@click.option("--model", help="The model from here on.")
@WAIT
@FOLLOW
@AS_JSON
def edit(  # noqa: PLR0913  # the options of a command
    chat_id: str,
    message_id: int,
    text: str,
    *,
    model: str | None,
    wait: bool,
    follow: bool,
    as_json: bool,
) -> None:
    """Replace your message MESSAGE by TEXT; what came after it is gone, and so is the queue."""
    choose(wait=wait, follow=follow)
    with one_sentence(), connect() as client:
        start = client.cursor(chat_id)
        turn = client.edit_message(chat_id, message_id, text, model=model)
        act_on_turn(client, turn, start, wait=wait, follow=follow, as_json=as_json)


@click.command()
@CHAT
@WAIT
@FOLLOW
@AS_JSON
def retry(chat_id: str, *, wait: bool, follow: bool, as_json: bool) -> None:
    """Go on with CHAT after an error."""
    choose(wait=wait, follow=follow)
    with one_sentence(), connect() as client:
        start = client.cursor(chat_id)
        act_on_turn(client, client.retry(chat_id), start, wait=wait, follow=follow, as_json=as_json)


@click.command()
@CHAT
def archive(chat_id: str) -> None:
    """Put CHAT and its children away; they must be at rest."""
    with one_sentence(), connect() as client:
        click.echo("archived" if client.archive(chat_id)["changed"] else "it was archived already")


@click.command()
@CHAT
def unarchive(chat_id: str) -> None:
    """Bring CHAT and its children back."""
    with one_sentence(), connect() as client:
        click.echo("unarchived" if client.unarchive(chat_id)["changed"] else "it was not archived")


@click.command()
@CHAT
@click.argument("labels", metavar="NAME=VALUE…", nargs=-1, required=True)
def label(chat_id: str, labels: tuple[str, ...]) -> None:
    """Set labels of CHAT; NAME= removes one. The others stay."""
    wanted: dict[str, str | None] = dict(parse_labels(labels))
    with one_sentence(), connect() as client:
        client.set_labels(chat_id, {name: value or None for name, value in wanted.items()})
        print_json(client.get_chat(chat_id)["labels"])


@click.command()
@CHAT
@click.option("--after", type=int, help="Those behind this message, the oldest first.")
@click.option("--before", type=int, help="Those before this message, the newest first.")
@click.option("--newest", is_flag=True, help="The newest first, from the end.")
@click.option("--limit", type=click.IntRange(1, 200), default=50, show_default=True)
@AS_JSON
def messages(  # noqa: PLR0913  # the options of a command
    chat_id: str,
    *,
    after: int | None,
    before: int | None,
    newest: bool,
    limit: int,
    as_json: bool,
) -> None:
    """Show a page of what was said in CHAT, with the ids of the messages."""
    newest = newest or before is not None
    if newest and after is not None:
        raise Failed("--after is for the oldest first: leave it out, or --before and --newest")
    with one_sentence(), connect() as client:
        page = client.get_messages(
            chat_id, after=after or 0, before=before, newest_first=newest, limit=limit
        )
    if as_json:
        print_json(page)
        return
    screen = PlainScreen()
    teller = Teller(screen)
    for message in page["messages"]:
        screen.line(f"{message['id']} {message['role']} {message['created_at'][:19]}", Style.DIM)
        teller.tell(StreamEvent("", "message", message))
    if page["next"] is not None:
        way = "--before" if newest else "--after"
        click.echo(f"More: rejoinder messages {chat_id} {way} {page['next']}", err=True)
