"""`rejoinder`: chats from the command line. It talks to workers through the client, like any app.

The servers come from the environment (REJOINDER_REDIS_URL); `make up` writes a file to be sourced.
`commands.py`, `messages.py`, `answers.py` and `accounts.py` have the commands, `talk.py` the
terminal chat, `telling.py` turns events into words.
"""

import click

from rejoinder import __version__
from rejoinder.cli import accounts, answers, commands, messages
from rejoinder.cli.talk import chat


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """Durable agent chats on the Celery you already run."""


for _command in (
    chat,
    commands.send,
    commands.tail,
    commands.show,
    commands.ls,
    commands.interrupt,
    commands.compact,
    accounts.title,
    accounts.usage,
    accounts.budget,
    answers.approve,
    answers.deny,
    answers.answer,
    messages.queue,
    messages.edit,
    messages.retry,
    messages.messages,
    messages.label,
    messages.archive,
    messages.unarchive,
):
    main.add_command(_command)
