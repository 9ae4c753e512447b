"""What a person can do in `rejoinder chat` besides talking: lines that begin with a slash.

`obey` runs one and gives the lines to show, and the status, if the chat has something to do. `//`
sends a message that begins with a slash.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rejoinder.cli.answers import typed
from rejoinder.cli.calls import short
from rejoinder.client import Client
from rejoinder.core.errors import Rejected
from rejoinder.core.messages import Role, WhenBusy

LONGEST = 60


@dataclass(frozen=True)
class Done:
    """What came of a command."""

    lines: tuple[str, ...] = ()
    status: str | None = None
    """The chat's, if it has something to do now."""


@dataclass(frozen=True)
class Command:
    """One command: what follows its name, what it does, and how."""

    takes: str
    says: str
    run: Callable[[Client, str, str], Done]


def obey(client: Client, chat_id: str | None, typed: str) -> Done | None:
    """Carry out a command; None if this is none, but something to say."""
    if not typed.startswith("/") or typed.startswith("//"):
        return None
    name, _, rest = typed[1:].partition(" ")
    if name in ("help", "?"):
        return Done(tuple(_help()))
    command = COMMANDS.get(name)
    if command is None:
        raise Rejected(f"There is no command /{name}", "/help lists them; // begins a message")
    if chat_id is None:
        raise Rejected("Nothing was said yet", "begin with a message")
    if command.takes and not command.takes.startswith("[") and not rest.strip():
        raise Rejected(f"/{name} needs more", f"write /{name} {command.takes}")
    return command.run(client, chat_id, rest.strip())


def _steer(client: Client, chat_id: str, text: str) -> Done:
    return Done(status=client.send_message(chat_id, text, when_busy=WhenBusy.STEER).status)


def _now(client: Client, chat_id: str, text: str) -> Done:
    return Done(status=client.send_message(chat_id, text, when_busy=WhenBusy.INTERRUPT).status)


def _stop(client: Client, chat_id: str, _: str) -> Done:
    return Done((f"· {client.interrupt(chat_id)}",))


def _queue(client: Client, chat_id: str, _: str) -> Done:
    waiting = client.get_chat(chat_id)["queue"]
    lines = [f"  {each['id']}: {_words(each)}{' (steers)' * each['steer']}" for each in waiting]
    return Done(tuple(lines) or ("· nothing waits",))


def _delete(client: Client, chat_id: str, which: str) -> Done:
    client.delete_queued(chat_id, _number(which))
    return Done(("· deleted",))


def _promote(client: Client, chat_id: str, which: str) -> Done:
    client.promote_queued(chat_id, _number(which))
    return Done(("· it comes next",))


def _edit(client: Client, chat_id: str, text: str) -> Done:
    page: dict[str, Any] = client.get_messages(chat_id, newest_first=True, limit=200)
    for message in page["messages"]:
        if message["role"] == Role.USER:
            return Done(status=client.edit_message(chat_id, message["id"], text).status)
    raise Rejected("There is no message of yours nearby", "edit it with rejoinder edit")


def _retry(client: Client, chat_id: str, _: str) -> Done:
    return Done(status=client.retry(chat_id).status)


def _title(client: Client, chat_id: str, text: str) -> Done:
    if text:
        client.set_title(chat_id, text)
    return Done((f"· {client.get_chat(chat_id)['title']}",))


def _compact(client: Client, chat_id: str, _: str) -> Done:
    return Done(status=client.compact(chat_id).status)


def _answer(verb: str) -> Callable[[Client, str, str], Done]:
    return lambda client, chat_id, rest: Done(status=typed(client, chat_id, verb, rest))


COMMANDS: Mapping[str, Command] = {
    "steer": Command("TEXT", "say it to the turn that runs, at its next step", _steer),
    "now": Command("TEXT", "stop the turn and say this", _now),
    "stop": Command("", "stop the turn; what was written stays", _stop),
    "queue": Command("", "list the messages that wait", _queue),
    "delete": Command("ID", "take a message out of the queue", _delete),
    "promote": Command("ID", "let a message that waits come next, now", _promote),
    "edit": Command("TEXT", "replace your last message", _edit),
    "retry": Command("", "go on after an error", _retry),
    "title": Command("[TEXT]", "show the title, or set it", _title),
    "compact": Command("", "have the chat summarised", _compact),
    "approve": Command("[CALL…] [WORDS]", "allow what is asked for", _answer("approve")),
    "deny": Command("[CALL…] [WORDS]", "refuse it, and say why", _answer("deny")),
    "answer": Command(
        "VALUE", "the result that is asked for; CALL=VALUE … of several", _answer("answer")
    ),
}


def _help() -> list[str]:
    known = {f"/{name} {each.takes}": each.says for name, each in COMMANDS.items()}
    return [f"  {usage:16} {says}" for usage, says in known.items()]


def _number(text: str) -> int:
    if not text.isdecimal():
        raise Rejected(f"{text!r} is no id", "/queue shows the ids")
    return int(text)


def _words(message: Mapping[str, Any]) -> str:
    text = " ".join(part.get("text") or f"[{part.get('type')}]" for part in message["parts"])
    return short(" ".join(text.split()), LONGEST)
