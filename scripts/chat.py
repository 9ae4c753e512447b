"""make chat: talk to an agent in the terminal, with nothing else running, or with `make up`.

If `.rejoinder/env` is there and its servers answer, they and their workers are used. Else it
starts servers and a worker of its own, quietly, and stops them at the end; chats are kept in
`.rejoinder/`.
"""

import argparse
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import click

from rejoinder.cli.connection import Failed, connect, one_sentence
from rejoinder.cli.talk import Conversation, default_model, hold
from rejoinder.embedded import ServersError
from scripts.fleet import FleetError, Stop, heeding_signals
from scripts.stack import HOME, AlreadyRunningError, running, stack


@contextmanager
def somewhere(home: Path) -> Iterator[tuple[Mapping[str, str], bool]]:
    """Servers with workers: those of the environment, of `make up`, or (True) our own."""
    if os.environ.get("REJOINDER_REDIS_URL"):
        yield os.environ, False
    elif found := running(home):
        note("Using what `make up` runs.")
        yield {**os.environ, **found}, False
    else:
        note("Starting servers and a worker …")
        with (
            heeding_signals() as signals,
            stack(home, flower=False, control=False, signals=signals) as own,
        ):
            with listening_to_ctrl_c():
                yield own.fleet.env, True
            note("Stopping them …")


@contextmanager
def listening_to_ctrl_c() -> Iterator[None]:
    """Inside a conversation Ctrl-C is about the conversation."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def note(text: str) -> None:
    """Say something about ourselves."""
    click.echo(click.style(text, dim=True), err=True)


def main(arguments: list[str]) -> int:
    """Find or start workers, talk, stop what was started."""
    parser = argparse.ArgumentParser(prog="make chat", description=__doc__)
    parser.add_argument("chat", nargs="?", help="a chat to go on with")
    parser.add_argument("--model", help="e.g. anthropic:claude-sonnet-4-6 or scripted:echo")
    parser.add_argument("--home", type=Path, default=HOME, help="where the data is kept")
    given = parser.parse_args(arguments)
    model, why = (given.model, "as you said") if given.model else default_model()
    try:
        with (
            somewhere(given.home.absolute()) as (env, ours),
            one_sentence(),
            connect(env) as client,
        ):
            talk = Conversation(client, given.chat, model=model, why=why, lasting=not ours)
            talk.again = "make chat ARGS="
            hold(talk)
    except Stop as stop:
        return int(str(stop.code))
    except Failed as failure:
        failure.show()
        return 1
    except (FleetError, ServersError, AlreadyRunningError) as error:
        click.echo(f"make chat: {error}", err=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
