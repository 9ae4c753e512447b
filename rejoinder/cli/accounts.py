"""Commands about a chat's name and its costs: title, usage, budget."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import click

from rejoinder.cli.commands import AS_JSON, OWNER, me, print_json
from rejoinder.cli.connection import Failed, connect, one_sentence
from rejoinder.cli.screen import PlainScreen, Style

MOMENT = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"])


@click.command()
@click.argument("chat_id", metavar="CHAT")
@click.argument("title")
def title(chat_id: str, title: str) -> None:
    """Name CHAT; no model overwrites it."""
    with one_sentence(), connect() as client:
        client.set_title(chat_id, title)


@click.command()
@click.argument("chat_id", metavar="CHAT", required=False)
@OWNER
@click.option("--since", type=MOMENT, help="From this moment on, in UTC.")
@click.option("--until", type=MOMENT, help="To before this moment, in UTC.")
@AS_JSON
def usage(
    chat_id: str | None,
    *,
    owner: str | None,
    since: datetime | None,
    until: datetime | None,
    as_json: bool,
) -> None:
    """Show what CHAT and its sub-agents have used; without CHAT, what an owner's chats have."""
    with one_sentence(), connect() as client:
        if chat_id and (owner or since or until):
            raise Failed(
                "--owner, --since and --until are for all chats of an owner: leave CHAT out"
            )
        if chat_id:
            found = client.get_chat(chat_id)
            told = {name: found[name] for name in ("usage", "tree_usage", "budget")}
            lines = {"this chat": told["usage"], "with sub-agents": told["tree_usage"]}
        else:
            told = client.get_usage(owner or me(), since=_utc(since), until=_utc(until))
            lines = {**told["models"], "all": told["usage"]}
    if as_json:
        print_json(told)
        return
    screen = PlainScreen()
    for name, used in lines.items():
        screen.line(f"{name:<32}  {in_words(used)}")
    if chat_id and told["budget"]:
        screen.line(f"{'budget':<32}  {limit_in_words(told['budget'])}", Style.DIM)


@click.command()
@click.argument("chat_id", metavar="CHAT")
@click.option("--tokens", type=click.IntRange(0), help="Tokens, in and out, cached ones included.")
@click.option("--cost", help="Dollars, e.g. 2.50.")
@click.option("--none", "no_limit", is_flag=True, help="Take the limits away.")
def budget(chat_id: str, *, tokens: int | None, cost: str | None, no_limit: bool) -> None:
    """Say what CHAT and its sub-agents may use; if it waits for more, it goes on."""
    if no_limit == (tokens is not None or cost is not None):
        raise click.UsageError("give --tokens, --cost or both; or --none")
    with one_sentence(), connect() as client:
        click.echo(client.set_budget(chat_id, tokens=tokens, cost=cost)["status"])


def in_words(used: Mapping[str, Any]) -> str:
    """What was used, in one line."""
    cached = used["cache_read_tokens"] + used["cache_write_tokens"]
    unpriced = (
        f" + {used['unpriced_calls']} calls without a price" if used["unpriced_calls"] else ""
    )
    return (
        f"{used['calls']} calls, {used['input_tokens'] + cached:,} tokens in"
        f" ({used['cache_read_tokens']:,} from a cache), {used['output_tokens']:,} out,"
        f" {used['runtime_ms'] / 1000:.1f} s, ${used['cost']}{unpriced}"
    )


def limit_in_words(budget: Mapping[str, Any]) -> str:
    """What may be used, in one line."""
    tokens = [] if budget["tokens"] is None else [f"{budget['tokens']:,} tokens"]
    cost = [] if budget["cost"] is None else [f"${budget['cost']}"]
    return ", ".join(tokens + cost)


def _utc(moment: datetime | None) -> datetime | None:
    return moment and moment.replace(tzinfo=UTC)
