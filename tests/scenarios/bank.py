"""A house next to another app: a worker for steps, and the other app's own with one slot."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rejoinder.client import Turn
from scripts.fleet import Member
from tests.scenarios.house import House, open_house
from tests.waiting import wait_until

LONG = 60.0
TOOLS = "rejoinder.tools.examples,tests.scenarios.some_tools,tests.scenarios.billing_tools"


@dataclass
class Bank:
    """The house, and its neighbour."""

    house: House
    billing: Member
    control: Member

    def start(self, *steps: Mapping[str, Any], **options: Any) -> Turn:
        """Create a chat that plays these steps, for every message anew."""
        return self.play([steps], **options)

    def play(self, turns: Sequence[Sequence[Mapping[str, Any]]], **options: Any) -> Turn:
        """Create a chat that plays these turns, the last one for ever."""
        script = {"turns": [list(steps) for steps in turns], "repeat": True}
        return self.house.client.create_chat(
            "Go.",
            owner="joe",
            model="scripted:inline",
            options={"extra": {"script": script}, **options},
        )

    def note(self, name: str) -> Path:
        """A file that no other test writes to."""
        return self.house.notes / f"{name}-{next(self.house._numbers)}"

    def chat(self, turn: Turn) -> dict[str, Any]:
        return self.house.client.get_chat(turn.chat_id)

    def wait_for(self, turn: Turn, status: str) -> dict[str, Any]:
        def reached() -> bool:
            return bool(self.house.row(turn)["status"] == status)

        wait_until(reached, LONG, f"{turn.chat_id} is {status}")
        return self.chat(turn)

    def results(self, turn: Turn) -> list[dict[str, Any]]:
        """The results in history, in order."""
        messages = self.house.client.get_messages(turn.chat_id)["messages"]
        return [part for m in messages if m["role"] == "tool" for part in m["parts"]]

    def hold_up(self) -> tuple[Turn, Path]:
        """Occupy the other app's only slot, until this file is there."""
        note, release = self.note("hold"), self.note("release")
        held = ask("billing_refund", amount=1, note=str(note), until=str(release))
        turn = self.start(held, {"text": "Held."})
        wait_until(note.exists, LONG)
        return turn, release

    def pretend_waited(self, turn: Turn) -> None:
        """Let its calls look as if they had been sent a while ago."""
        with self.house.world.engine.begin() as connection:
            connection.exec_driver_sql(
                "UPDATE rejoinder.tool_calls SET started_at = now() - interval '1 minute'"
                " WHERE chat_id = %s AND started_at IS NOT NULL",
                (turn.chat_id,),
            )

    def sweep_until(self, turn: Turn, status: str) -> None:
        """Sweep, as beat would, until the chat has this status."""

        def reached() -> bool:
            self.house.client.app.send_task("rejoinder.sweep", queue="rejoinder.control")
            return bool(self.house.row(turn)["status"] == status)

        wait_until(reached, LONG, f"{turn.chat_id} is {status}")


def ask(name: str, **arguments: Any) -> dict[str, Any]:
    """A step of a script: one call."""
    return together(wanted(name, **arguments))


def wanted(name: str, *, call_id: str | None = None, **arguments: Any) -> dict[str, Any]:
    """One call among others."""
    given = {"name": name, "arguments": arguments}
    return {**given, "id": call_id} if call_id else given


def together(*calls: Mapping[str, Any]) -> dict[str, Any]:
    """A step of a script: these calls in one message."""
    return {"text": "Let me see.", "calls": list(calls)}


@contextmanager
def open_bank(
    pool: str, database_url: str, redis_url: str, folder: Path, settings: Mapping[str, str]
) -> Iterator[Bank]:
    """A house with one worker for steps, and the other app's worker."""
    settings = {**settings, "REJOINDER_TOOLS": TOOLS}
    with open_house(pool, database_url, redis_url, folder, settings) as house:
        (control,) = house.fleet.members
        billing = start_billing(house)
        house.worker()
        house.fleet.wait_until_ready(billing)
        yield Bank(house, billing, control)


def start_billing(house: House, options: Sequence[str] = ()) -> Member:
    """Start a worker of the other app."""
    number = next(house._numbers)
    arguments = [
        "worker",
        "--loglevel=INFO",
        f"--hostname=billing-{number}@%h",
        "--pool=prefork",  # Celery's default: what waits for a slot there can still be revoked
        "--concurrency=1",
        "--prefetch-multiplier=1",
        *options,
    ]
    app = "tests.scenarios.billing"
    return house.fleet.start(f"billing-{number}", arguments, ready_when=" ready.", app=app)
