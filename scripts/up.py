"""make up: servers, workers, beat and Flower, in the foreground, until Ctrl-C.

Every line of every log is shown with the name of its process before it. If one of them ends by
itself, that is said, and all end, with exit code 1. The processes are those of `stack.py`.
"""

import argparse
import os
import sys
import time
from pathlib import Path
from typing import BinaryIO

from rejoinder.embedded import ServersError
from scripts.fleet import FleetError, Member, Stop, heeding_signals
from scripts.stack import HOME, AlreadyRunningError, Stack, stack

LOOK_SECONDS = 0.1
ROUTINE = b"rejoinder.sweep"
"""Every few seconds, and of no interest unless it fails; the log files have it."""
COLOURS = ("36", "35", "33", "32", "34")


class Logs:
    """Shows what the processes log, as they log it."""

    def __init__(self, members: list[Member]) -> None:
        """Begin at the start of each log."""
        self._colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        self._width = max(len(member.name) for member in members)
        self._files: list[tuple[str, BinaryIO]] = []
        for number, member in enumerate(members):
            prefix = f"{member.name:{self._width}} │ "
            if self._colour:
                prefix = f"\033[{COLOURS[number % len(COLOURS)]}m{prefix}\033[0m"
            self._files.append((prefix, member.log.open("rb")))

    def show(self) -> None:
        """Print the lines that are new and complete."""
        for prefix, file in self._files:
            while line := file.readline():
                if not line.endswith(b"\n"):
                    file.seek(-len(line), 1)
                    break
                if ROUTINE in line and b": INFO/" in line:
                    continue
                if text := line.decode("utf-8", "replace").rstrip():
                    print(f"{prefix}{text}")
        sys.stdout.flush()


def say(text: str) -> None:
    """Say something of our own."""
    print(text, flush=True)


def introduce(running: Stack, home: Path) -> None:
    """Say what runs where."""
    env = os.path.relpath(home / "env")
    say(
        f"\nUp. In another shell:\n"
        f"    make chat\n"
        f"    . {env} && celery -A tasks status\n"
        f"    . {env} && rejoinder send --follow Hello\n"
        f"Postgres  {running.servers.database_url}\n"
        f"Redis     {running.servers.redis_url}\n"
        f"Flower    {running.flower_url}\n"
        f"Logs      {os.path.relpath(running.fleet.logs)}/\n"
        f"Ctrl-C stops everything.\n"
    )


def main(arguments: list[str]) -> int:
    """Start everything, show the logs, stop everything."""
    parser = argparse.ArgumentParser(prog="make up", description=__doc__)
    parser.add_argument("--home", type=Path, default=HOME, help="where the data is kept")
    home: Path = parser.parse_args(arguments).home.absolute()
    with heeding_signals() as signals:
        try:
            say("Starting Postgres, Valkey, two workers, beat and Flower …")
            with stack(home, flower=True, control=True, signals=signals) as running:
                logs = Logs(running.fleet.members)
                introduce(running, home)
                try:
                    while True:
                        logs.show()
                        running.fleet.check()
                        time.sleep(LOOK_SECONDS)
                finally:
                    logs.show()
                    say("\nStopping (Ctrl-C again: at once) …")
        except Stop:
            say("Stopped.")
            return 0
        except (FleetError, ServersError, AlreadyRunningError) as error:
            say(f"make up: {error}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
