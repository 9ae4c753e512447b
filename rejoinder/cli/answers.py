"""Answering a chat that waits for a person: `rejoinder approve`, `deny` and `answer`.

In the terminal chat the same words begin with a slash (`slash.py`). What is asked is told by
`telling.py`; a refusal (decided already, not asked) is the front door's, with what to do.
"""

import json
import shlex
from collections.abc import Sequence
from typing import Any

import click

from rejoinder.cli.connection import connect, one_sentence
from rejoinder.client import Client
from rejoinder.core.errors import Rejected
from rejoinder.core.messages import CallKind

REASON = click.option("--reason", help="The model reads it.")
CHAT = click.argument("chat_id", metavar="CHAT")
CALLS = click.argument("call_ids", metavar="[CALL]...", nargs=-1)


@click.command()
@CHAT
@CALLS
@REASON
def approve(chat_id: str, call_ids: Sequence[str], reason: str | None) -> None:
    """Allow what CHAT asks for: these calls, or all that wait."""
    with one_sentence(), connect() as client:
        click.echo(client.approve(chat_id, call_ids or None, reason=reason)["status"])


@click.command()
@CHAT
@CALLS
@REASON
def deny(chat_id: str, call_ids: Sequence[str], reason: str | None) -> None:
    """Refuse what CHAT asks for: these calls, or all that wait."""
    with one_sentence(), connect() as client:
        click.echo(client.deny(chat_id, call_ids or None, reason=reason)["status"])


@click.command()
@CHAT
@click.argument("answers", metavar="CALL=VALUE...", nargs=-1, required=True)
@click.option("--error", is_flag=True, help="The values say why there is no result.")
def answer(chat_id: str, answers: Sequence[str], *, error: bool) -> None:
    """Give CHAT the results of client-side tools: one for each call that asks for one.

    VALUE is JSON, or else a text.
    """
    with one_sentence(), connect() as client:
        results = [_result(each, is_error=error) for each in answers]
        click.echo(client.submit_tool_results(chat_id, results)["status"])


def typed(client: Client, chat_id: str, verb: str, rest: str) -> str:
    """Do what was typed after a verb, and give the chat's status."""
    calls = client.get_chat(chat_id)["open_calls"]
    if verb == "answer":
        done = client.submit_tool_results(chat_id, _typed_results(calls, rest.strip()))
    else:
        known = {call["call_id"] for call in calls}
        words = rest.split()
        chosen = [word for word in words if word in known]
        reason = " ".join(word for word in words if word not in known)
        act = client.approve if verb == "approve" else client.deny
        done = act(chat_id, chosen or None, reason=reason or None)
    return str(done["status"])


def _typed_results(calls: Sequence[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """`VALUE` if one call asks for a result; `CALL=VALUE …`, each quoted if need be, otherwise."""
    asked = [call["call_id"] for call in calls if call["kind"] == CallKind.CLIENT]
    if len(asked) == 1 and not text.startswith(f"{asked[0]}="):
        return [{"call_id": asked[0], "content": _value(text)}]
    try:
        return [_result(each) for each in shlex.split(text)] or [_result("")]
    except ValueError as error:
        raise Rejected(f"{error}", "quote a value that has spaces in it") from None


def _result(answer: str, *, is_error: bool = False) -> dict[str, Any]:
    call_id, equals, value = answer.partition("=")
    if not (call_id and equals):
        raise Rejected(f"{answer!r} is no answer", "write CALL=VALUE, with the call's id")
    return {"call_id": call_id, "content": _value(value), "is_error": is_error}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
