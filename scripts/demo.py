"""make demo: a chat with tools, streamed from two real workers, one of which is killed on the way.

Servers of its own, two `celery -A tasks worker` processes, and an app that knows only the client.
While tools run, the worker that has the chat gets a SIGKILL; the sweep notices that its heartbeat
is missing, and the other worker goes on where it fell. Exit code 0: the turn was completed, by the
other worker, and history holds each message once.
"""

import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from models.engine import make_engine
from models.migrate import upgrade
from rejoinder import embedded
from rejoinder.cli.screen import PlainScreen, Style
from rejoinder.cli.telling import Teller
from rejoinder.client import Client, Turn
from rejoinder.core.state import AT_REST, Status
from rejoinder.embedded import ServersError
from scripts.fleet import (
    Fleet,
    FleetError,
    Member,
    Signals,
    Stop,
    environment,
    heeding_signals,
)

# A demo should not wait for the dead: the defaults are 5, 15 and 5 s.
HEARTBEAT, DEAD_AFTER, SWEEP_EVERY = 0.5, 2.0, 0.5
LONGEST_TURN = 60.0
QUESTION = "Bonn or Lima today: where is it warmer, and do I need an umbrella?"
SCRIPT: dict[str, Any] = {
    "steps": [
        {
            "thinking": "Two cities and an umbrella: I can ask for all of it at once.",
            "text": "Let me look at both places, and at umbrellas.",
            "calls": [
                {"name": "weather", "arguments": {"city": "Bonn"}},
                {"name": "weather", "arguments": {"city": "Lima"}},
                {"name": "slow_lookup", "arguments": {"topic": "umbrella", "seconds": 2}},
            ],
            "pace": 0.03,
        },
        {
            "text": "And the difference?",
            "calls": [
                {
                    "name": "calculate",
                    "arguments": {"expression": "{result:0.celsius} - ({result:1.celsius})"},
                }
            ],
            "pace": 0.03,
        },
        {
            "text": "Bonn is {result} degrees warmer than Lima today. Take an umbrella to Lima: it"
            " rains there. This answer was finished by another worker than the one that began it.",
            "pace": 0.05,
        },
    ]
}

screen = PlainScreen()


def say(words: str, style: Style = Style.BOLD) -> None:
    """Say something between the lines of the chat."""
    screen.line(words, style)


class Demo:
    """One turn, with an accident."""

    def __init__(self, fleet: Fleet, client: Client, database_url: str) -> None:
        """Begin with two healthy workers."""
        self.fleet = fleet
        self.client = client
        self.engine = make_engine(database_url)
        self.teller = Teller(screen, progress=True)
        self.killed: tuple[str, float] | None = None
        self.recovered: float | None = None
        self.model_calls = 0

    def play(self) -> bool:
        """Ask, watch, kill, watch; say whether all went well."""
        began = time.monotonic()
        turn = self.client.create_chat(
            QUESTION, owner="demo", model="scripted:demo", options={"extra": {"script": SCRIPT}}
        )
        for event in self.client.follow(turn.chat_id, idle_seconds=1):
            if time.monotonic() - began > LONGEST_TURN:
                say(f"✗ The turn did not end within {LONGEST_TURN:.0f} s.", Style.BAD)
                return False
            if event is None:
                continue
            self.teller.tell(event)
            if event.kind == "part" and event.data["seq"] == event.data["n"]:
                self.model_calls += 1  # the first part of an answer
            if event.kind == "tool" and event.data["state"] == "progress" and not self.killed:
                self._kill_the_owner(turn)
            if event.kind == "status":
                self._note_recovery(event.data["status"])
                if event.data["status"] in AT_REST:
                    break
        return self._conclude(turn, time.monotonic() - began)

    def _kill_the_owner(self, turn: Turn) -> None:
        owner = self._owner(turn)
        if owner is None:
            return
        owner.kill()
        self.killed = (owner.name, time.monotonic())
        say(f"── SIGKILL for worker {owner.name} (process {owner.pid}), in the middle of its tools")

    def _owner(self, turn: Turn) -> Member | None:
        """The process that holds the chat's lease, as its row says."""
        query = text(
            "SELECT w.name FROM rejoinder.chats c JOIN rejoinder.workers w ON w.id = c.worker_id"
            " WHERE c.id = :id"
        )
        with self.engine.connect() as connection:
            name = connection.execute(query, {"id": turn.chat_id}).scalar_one_or_none()
        pid = str(name).rpartition(":")[2]
        return next((each for each in self.fleet.members if str(each.pid) == pid), None)

    def _note_recovery(self, status: str) -> None:
        if self.killed and self.recovered is None and status == Status.RUNNING:
            self.recovered = time.monotonic() - self.killed[1]
            other = next(each.name for each in self.fleet.members if each.alive)
            say(f"── worker {other} goes on, {self.recovered:.1f} s after the kill")

    def _conclude(self, turn: Turn, took: float) -> bool:
        result = turn.get(timeout=10)
        messages = self.client.get_messages(turn.chat_id)["messages"]
        say("\nWhat stands in Postgres now:")
        for message in messages:
            for part in message["parts"]:
                screen.line(f"  {message['id']:>2} {message['role']:9} {_told(part)}")
        roles = [message["role"] for message in messages]
        expected = ["user", "assistant", "tool", "assistant", "tool", "assistant"]
        good = (
            result["state"] == "finished"
            and roles == expected
            and self.model_calls == roles.count("assistant")
            and self.killed is not None
            and self.recovered is not None
        )
        if good and self.killed and self.recovered:
            say(
                f"\n✓ One turn of three model calls and four tool calls in {took:.1f} s. Worker "
                f"{self.killed[0]} was killed;\n  the other went on {self.recovered:.1f} s later "
                f"(dead after {DEAD_AFTER:.0f} s of silence; by default 15).\n  Nothing was lost, "
                f"answered twice, or asked of the model twice.",
                Style.GOOD,
            )
        else:
            what = f"{result['state']}, {self.model_calls} model calls, {roles}"
            say(f"✗ That is not what should have happened: {what}", Style.BAD)
        return good


def _told(part: dict[str, Any]) -> str:
    match part["type"]:
        case "reasoning":
            return f"(thinking) {part['text']}"
        case "tool_call":
            return f"→ {part['name']}({part['arguments']})"
        case "tool_result":
            return f"⇒ {part['content']}"
        case _:
            return str(part["text"])


@contextmanager
def sweeping(client: Client) -> Iterator[None]:
    """What beat does every 5 s, more often."""
    done = threading.Event()

    def sweep() -> None:
        while not done.wait(SWEEP_EVERY):
            client.app.send_task("rejoinder.sweep", queue="rejoinder.control", expires=5)

    thread = threading.Thread(target=sweep, name="sweeping", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(5)


def run(logs: Path, signals: Signals) -> bool:
    """Start everything, play, stop everything."""
    began = time.monotonic()
    with embedded.servers() as servers:
        env = environment(
            servers.database_url,
            servers.redis_url,
            REJOINDER_TOOLS="rejoinder.tools.examples",
            REJOINDER_HEARTBEAT_SECONDS=str(HEARTBEAT),
            REJOINDER_DEAD_AFTER_SECONDS=str(DEAD_AFTER),
        )
        with Fleet(env, logs, signals=signals) as fleet:
            for name in ("A", "B"):  # while they load, we migrate
                fleet.worker(name, concurrency=8, options=["--without-mingle"])
            upgrade(servers.database_url)
            fleet.wait_until_ready()
            pids = ", ".join(f"{each.name} (process {each.pid})" for each in fleet.members)
            say(f"Postgres, Valkey and workers {pids}: up in {time.monotonic() - began:.1f} s\n")
            with Client(broker_url=servers.redis_url, timeout=20) as client, sweeping(client):
                demo = Demo(fleet, client, servers.database_url)
                try:
                    good = demo.play()
                finally:
                    demo.engine.dispose()
    return good


def main() -> int:
    """Play the demo; on Ctrl-C, leave nothing behind."""
    with (
        heeding_signals() as signals,
        tempfile.TemporaryDirectory(prefix="rejoinder-demo-") as logs,
    ):
        try:
            return 0 if run(Path(logs), signals) else 1
        except Stop as stop:
            say("\nStopped.")
            return int(str(stop.code))
        except (FleetError, ServersError) as error:
            say(f"make demo: {error}", Style.BAD)
            return 1
        except OperationalError as error:
            say(
                f"make demo: Postgres does not answer: {str(error.orig).strip()}\n"
                "If REJOINDER_DATABASE_URL is set, that server is used; unset it (and"
                " REJOINDER_REDIS_URL) to have the demo start its own.",
                Style.BAD,
            )
            return 1


if __name__ == "__main__":
    sys.exit(main())
