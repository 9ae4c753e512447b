"""make demo: a chat with tools, streamed from real workers that are stopped and killed on the way.

Servers of its own, three `celery -A tasks worker` processes, and an app that knows only the client.
While tools run, the worker that has the chat gets a SIGTERM, as in a deploy: it hands the chat over
and ends. The one that goes on gets a SIGKILL: the sweep notices that its heartbeat is missing, and
the third goes on where it fell. Exit code 0: the turn was completed, and history holds each message
once.
"""

import signal
import sys
import tempfile
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
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
    repeatedly,
)

# A demo should not wait for the dead, nor for the leaving: the defaults are 5, 15, 5 and 10 s.
HEARTBEAT, DEAD_AFTER, SWEEP_EVERY, DRAIN = 0.5, 2.0, 0.5, 1.0
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
                {"name": "slow_lookup", "arguments": {"topic": "umbrella", "seconds": 3}},
            ],
            "pace": 0.03,
        },
        {
            "text": "And the difference?",
            "calls": [
                {
                    "name": "calculate",
                    "arguments": {"expression": "{result:0.celsius} - ({result:1.celsius})"},
                },
                {"name": "slow_lookup", "arguments": {"topic": "difference", "seconds": 2}},
            ],
            "pace": 0.03,
        },
        {
            "text": "Bonn is {result:0} degrees warmer than Lima today. Take an umbrella to Lima:"
            " it rains there. Three workers have had a hand in this answer.",
            "pace": 0.05,
        },
    ]
}

screen = PlainScreen()


def say(words: str, style: Style = Style.BOLD) -> None:
    """Say something between the lines of the chat."""
    screen.line(words, style)


@dataclass
class Accident:
    """A signal that a worker got, and when another one went on."""

    number: signal.Signals
    victim: Member
    at: float
    recovered: float | None = None
    by: str = ""


class Demo:
    """One turn, with two accidents."""

    def __init__(self, fleet: Fleet, client: Client, database_url: str) -> None:
        """Begin with healthy workers."""
        self.fleet = fleet
        self.client = client
        self.engine = make_engine(database_url)
        self.teller = Teller(screen, progress=True)
        self.to_come = [signal.SIGTERM, signal.SIGKILL]
        self.accidents: list[Accident] = []
        self.model_calls = 0

    def play(self) -> bool:
        """Ask, watch, stop, watch, kill, watch; say whether all went well."""
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
            if event.kind == "tool" and event.data["state"] == "progress":
                self._have_an_accident(turn)
            if event.kind == "status":
                self._note_recovery(turn, event.data["status"])
                if event.data["status"] in AT_REST:
                    break
        return self._conclude(turn, time.monotonic() - began)

    def _have_an_accident(self, turn: Turn) -> None:
        """Send the next signal to the worker that has the chat, once the last one is dealt with."""
        if not self.to_come or any(each.recovered is None for each in self.accidents):
            return
        owner = self._owner(turn)
        if owner is None or owner.stopping:
            return
        number = self.to_come.pop(0)
        owner.signal(number)
        self.accidents.append(Accident(number, owner, time.monotonic()))
        say(f"── {number.name} for worker {owner.name} (process {owner.pid}), in mid-turn")

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

    def _note_recovery(self, turn: Turn, status: str) -> None:
        open_ones = [each for each in self.accidents if each.recovered is None]
        if not open_ones or status != Status.RUNNING:
            return
        accident, owner = open_ones[0], self._owner(turn)
        if owner is None or owner is accident.victim:
            return
        accident.recovered, accident.by = time.monotonic() - accident.at, owner.name
        say(f"── worker {owner.name} goes on, {accident.recovered:.1f} s after the signal")

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
            and [each.number for each in self.accidents] == [signal.SIGTERM, signal.SIGKILL]
            and all(each.recovered is not None for each in self.accidents)
            and self.accidents[0].victim.wait() == 0
        )
        if good:
            stopped, killed = self.accidents
            say(
                f"\n✓ One turn of three model calls and five tool calls in {took:.1f} s.\n"
                f"  Worker {stopped.victim.name} got a SIGTERM, as in a deploy;"
                f" {stopped.by} went on {stopped.recovered:.1f} s later, after\n"
                f"  {DRAIN:.0f} s in which the step might have finished (by default 10).\n"
                f"  Worker {killed.victim.name} got a SIGKILL; {killed.by} went on"
                f" {killed.recovered:.1f} s later (dead after {DEAD_AFTER:.0f} s of silence;\n"
                f"  by default 15). Nothing was lost, answered twice, or asked of the model twice.",
                Style.GOOD,
            )
        else:
            what = f"{result['state']}, {self.model_calls} model calls, {roles}, {self.accidents}"
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


def sweeping(client: Client) -> AbstractContextManager[None]:
    """What beat does every 5 s, more often."""

    def sweep() -> None:
        client.app.send_task("rejoinder.sweep", queue="rejoinder.control", expires=5)

    return repeatedly(SWEEP_EVERY, sweep, "sweeping")


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
            REJOINDER_DRAIN_SECONDS=str(DRAIN),
        )
        with Fleet(env, logs, signals=signals) as fleet:
            for name in ("A", "B", "C"):  # while they load, we migrate
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
