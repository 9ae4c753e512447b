"""An app that gives commands by task name and never asks what became of them.

Its chats are its own (`OWNER`), and each message that it sends is unique. Some commands have a key,
and some of those are given twice; some have a task id that is no UUID. A command is *accepted* once
the broker took it: from then on it must be done, once, whoever falls meanwhile. Some plans wait
for a person who never comes: only an interrupt, a command as well, ends those turns.
"""

import random
import threading
import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from rejoinder.client import Client
from scripts.chaos_parts.journal import Command, Journal, Outcome, Stop
from scripts.chaos_parts.plan import Call, Plan

OWNER = "commands"
MODEL = "anthropic:claude-sonnet-4-5"
PARKED = "ask_nobody"
PARKED_SECONDS = 3600.0
OPTIONS = {
    "client_tools": [{"name": PARKED, "description": "Wait for nobody.", "seconds": PARKED_SECONDS}]
}
GAP_SECONDS, BURST = 1.0, 3
"""How often commands are given, and how many at once."""
MOST_CHATS, MOST_QUEUED = 12, 4
CREATE, PARKS, KEYED, TWICE, FOREIGN = 0.2, 0.12, 0.5, 0.3, 0.3
"""The shares of commands that create, of plans that park, of commands with a key, of those that are
given twice, and of task ids that are no UUID."""
MODES = ("queue", "queue", "queue", "steer", "interrupt")


class Commander:
    """A thread with a client. What it reads it waits for, what it commands it does not."""

    def __init__(self, make_client: Callable[[], Client], journal: Journal, seed: int) -> None:
        """Begin with no chat."""
        self._make_client = make_client
        self._journal = journal
        self._dice = random.Random(f"commands {seed}")  # noqa: S311  # a game
        self._numbers = 0
        self._created = 0
        self._parked: dict[str, str] = {}
        """Turns that are to be interrupted, and the command that does it."""
        self._closing = threading.Event()
        self._closed = threading.Event()
        self.thread = threading.Thread(target=self._run, name="commander", daemon=True)

    def finish(self) -> None:
        """Say nothing new; turns that wait for nobody are still interrupted."""
        self._closing.set()

    def close(self) -> None:
        """Go home."""
        self._closed.set()

    def _run(self) -> None:
        with self._make_client() as client:
            while not self._closed.wait(GAP_SECONDS):
                chats = self._chats(client)
                for chat in chats:
                    if chat["status"] == "requires_action":
                        self._interrupt(client, chat)
                for _ in range(BURST):
                    if not self._closing.is_set():
                        self._speak(client, chats)

    def _chats(self, client: Client) -> list[dict[str, Any]]:
        try:
            chats: list[dict[str, Any]] = client.list_chats(OWNER, limit=200)["chats"]
        except Exception:  # noqa: BLE001  # servers and workers are away, in any way
            return []
        return chats

    def _speak(self, client: Client, chats: list[dict[str, Any]]) -> None:
        free = [chat for chat in chats if chat["queue_length"] <= MOST_QUEUED]
        new = self._dice.random() < CREATE or not free
        if new and self._created >= MOST_CHATS:
            return
        plan = self._plan()
        if new:
            self._created += 1
            more = {"owner": OWNER, "model": MODEL, "options": OPTIONS}
            self._give(client, "create_chat", {"content": plan.text, **more}, plan)
            return
        chat = self._dice.choice(free)
        mode = self._dice.choice(MODES)
        if mode == "interrupt":
            self._journal.stop(Stop(chat["id"], None, time.time(), "interrupting command"))
        request = {"chat_id": chat["id"], "content": plan.text, "when_busy": mode}
        self._give(client, "send_message", request, plan)

    def _plan(self) -> Plan:
        self._numbers += 1
        tools = self._dice.choice(((), ("quick",), ("ledger_once",)))
        if self._dice.random() < PARKS:
            tools = (PARKED,)
        steps = tuple((Call(tool),) for tool in tools)
        return Plan(f"command-{self._numbers}", steps)

    def _interrupt(self, client: Client, chat: dict[str, Any]) -> None:
        """Give the command once; again only if the broker did not take it, or lost it."""
        chat_id, turn_id = str(chat["id"]), str(chat["turn_id"])
        given = self._parked.get(turn_id)
        if given is not None and not self._journal.may_be_lost(given):
            return
        named = {"turn_id": turn_id} if self._dice.random() < KEYED else {}
        self._journal.stop(Stop(chat_id, named.get("turn_id"), time.time(), "command"))
        request = {"chat_id": chat_id, **named}
        self._parked[turn_id] = self._publish(client, "interrupt", request, None, turn_id)

    def _give(self, client: Client, verb: str, request: dict[str, Any], plan: Plan) -> None:
        keyed, twice = self._dice.random() < KEYED, self._dice.random() < TWICE
        if keyed:
            request = {**request, "key": plan.id}
        for _ in range(2 if keyed and twice else 1):
            self._publish(client, verb, request, plan, None)

    def _publish(
        self,
        client: Client,
        verb: str,
        request: dict[str, Any],
        plan: Plan | None,
        turn_id: str | None,
    ) -> str:
        foreign = self._dice.random() < FOREIGN
        task_id = f"command/{uuid4().hex}" if foreign else str(uuid4())
        asked_at, outcome = time.time(), Outcome.ACCEPTED
        try:
            client.app.send_task(
                f"rejoinder.{verb}",
                kwargs=request,
                task_id=task_id,
                queue="rejoinder.control",
                ignore_result=True,
            )
        except Exception:  # noqa: BLE001  # as above
            outcome = Outcome.UNKNOWN
        chat_id = request.get("chat_id")
        self._journal.command(
            Command(task_id, verb, outcome, asked_at, time.time(), plan, chat_id, turn_id)
        )
        return task_id
