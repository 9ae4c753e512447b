"""People who chat: they know `rejoinder.Client` and nothing else, and they do not give up.

A message is sent with an idempotency key and repeated until it is accepted or refused; servers and
workers may be away meanwhile. One driver has several chats, and in each asks for one thing at a
time, so that the order of acceptance within a chat is known. Everything goes into the journal.
"""

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rejoinder.client import Client, Turn
from rejoinder.core.errors import Rejected
from scripts.chaos_parts.drawing import ALL, Mix, draw
from scripts.chaos_parts.journal import Asked, Compacted, Journal, Outcome, Stop
from scripts.chaos_parts.ledger import CLIENT_TOOLS
from scripts.chaos_parts.office import OWNER
from scripts.chaos_parts.plan import Plan

MODEL = "anthropic:claude-sonnet-4-5"
CHATS_PER_DRIVER = 5
CALL_SECONDS = 6.0
"""How long one call waits for its answer before it is repeated."""
MOST_QUEUED = 3
MODES = ("queue", "queue", "queue", "steer", "steer", "interrupt", "reject")
OPTIONS = {"client_tools": CLIENT_TOOLS, "agents": True}
EDIT, INTERRUPT, COMPACT = 0.06, 0.06, 0.06
"""The shares of actions that are not messages."""
BUDGETED, TOKENS = 0.2, 4_000
"""The share of chats with a budget, and what they begin with."""


@dataclass
class Conversation:
    """One chat, as its driver knows it."""

    number: int
    dice: random.Random
    mix: frozenset[Mix] = ALL
    chat_id: str | None = None
    turn_id: str | None = None
    count: int = 0
    next_at: float = 0.0

    def plan(self) -> Plan:
        """The next thing to ask for."""
        self.count += 1
        return draw(f"c{self.number}-t{self.count}", self.dice, self.mix)


@dataclass
class Tally:
    """What drivers had to bear."""

    calls: int = 0
    repeated: int = 0
    troubles: dict[str, int] = field(default_factory=dict)


class Driver:
    """A thread with a client and some chats."""

    def __init__(
        self,
        make_client: Callable[[], Client],
        journal: Journal,
        seed: int,
        numbers: range,
        mix: frozenset[Mix],
    ) -> None:
        """Take care of the chats with these numbers."""
        self._make_client = make_client
        self._journal = journal
        self._chats = [
            Conversation(n, random.Random(f"chat {seed} {n}"), mix)  # noqa: S311  # a game
            for n in numbers
        ]
        self._closing = threading.Event()
        self._give_up = threading.Event()
        self.tally = Tally()
        self.thread = threading.Thread(target=self._run, name=f"driver{numbers.start}", daemon=True)

    def close(self) -> None:
        """Begin nothing new; what is under way is still repeated."""
        self._closing.set()

    def give_up(self) -> None:
        """Repeat nothing any more."""
        self._closing.set()
        self._give_up.set()

    def _run(self) -> None:
        with self._make_client() as client:
            while not self._closing.is_set():
                chat = min(self._chats, key=lambda each: each.next_at)
                if self._closing.wait(max(0.0, chat.next_at - time.monotonic())):
                    return
                self._act(client, chat)
                chat.next_at = time.monotonic() + chat.dice.uniform(0.5, 4.0)

    def _act(self, client: Client, chat: Conversation) -> None:
        if chat.chat_id is None:
            self._create(client, chat)
            return
        drawn = chat.dice.random()
        if drawn < EDIT:
            self._edit(client, chat)
        elif drawn < EDIT + INTERRUPT:
            self._interrupt(client, chat)
        elif drawn < EDIT + INTERRUPT + COMPACT and Mix.COMPACTION in chat.mix:
            self._compact(client, chat)
        else:
            self._send(client, chat)

    def _create(self, client: Client, chat: Conversation) -> None:
        plan = chat.plan()
        limited = chat.dice.random() < BUDGETED and Mix.BUDGETS in chat.mix
        budget = {"tokens": TOKENS} if limited else None
        self._until_answered(
            chat,
            plan,
            "create",
            lambda: client.create_chat(
                plan.text, owner=OWNER, model=MODEL, options=OPTIONS, budget=budget, key=plan.id
            ),
        )

    def _send(self, client: Client, chat: Conversation) -> None:
        chat_id = str(chat.chat_id)
        seen = self._once(lambda: client.get_chat(chat_id))
        if seen is None or seen["queue_length"] >= MOST_QUEUED:
            return
        mode = chat.dice.choice(MODES)
        if mode == "steer" and Mix.STEERING not in chat.mix:
            mode = "queue"
        plan = chat.plan()
        self._until_answered(
            chat,
            plan,
            mode,
            lambda: client.send_message(chat_id, plan.text, when_busy=mode, key=plan.id),
        )

    def _until_answered(
        self, chat: Conversation, plan: Plan, mode: str, ask: Callable[[], Turn]
    ) -> None:
        """Ask until there is an answer, and note it.

        A refusal that follows an unanswered try is no certainty: that try may still be under way.
        """
        asked_at, tries = time.time(), 0
        outcome, turn = Outcome.UNKNOWN, None
        while not self._give_up.is_set():
            tries += 1
            try:
                turn = self._call(ask)
            except Rejected:
                outcome = Outcome.REFUSED if tries == 1 else Outcome.UNKNOWN
                break
            if turn is not None:
                outcome = Outcome.ACCEPTED
                chat.chat_id, chat.turn_id = turn.chat_id, turn.turn_id
                break
            self.tally.repeated += 1
        self._note(chat, plan, mode, outcome, asked_at, turn)

    def _edit(self, client: Client, chat: Conversation) -> None:
        """Rewrite one of the user's messages. Without a key: tried once, whatever comes of it."""
        chat_id = str(chat.chat_id)
        page = self._once(lambda: client.get_messages(chat_id, limit=200))
        mine = [m["id"] for m in page["messages"] if m["role"] == "user"] if page else []
        if not mine:
            return
        chosen = chat.dice.choice(mine[-2:])
        plan, asked_at = chat.plan(), time.time()
        outcome, turn = Outcome.UNKNOWN, None
        try:
            turn = self._call(lambda: client.edit_message(chat_id, chosen, plan.text))
            outcome = Outcome.ACCEPTED if turn else Outcome.UNKNOWN
        except Rejected:
            outcome = Outcome.REFUSED
        if turn is not None:
            chat.turn_id = turn.turn_id
        self._note(chat, plan, "edit", outcome, asked_at, turn, edits=chosen)

    def _interrupt(self, client: Client, chat: Conversation) -> None:
        chat_id, turn_id = str(chat.chat_id), chat.turn_id
        at = time.time()
        answer = self._once(lambda: client.interrupt(chat_id, turn_id=turn_id))
        self._journal.stop(Stop(chat_id, turn_id, at, "driver", answered=answer is not None))

    def _compact(self, client: Client, chat: Conversation) -> None:
        """Have the chat summarised, if it is at rest. Without a key: tried once."""
        chat_id, at = str(chat.chat_id), time.time()
        outcome, turn = Outcome.UNKNOWN, None
        try:
            turn = self._call(lambda: client.compact(chat_id))
            outcome = Outcome.ACCEPTED if turn else Outcome.UNKNOWN
        except Rejected:
            outcome = Outcome.REFUSED
        turn_id = turn.turn_id if turn else None
        self._journal.compaction(Compacted(chat_id, turn_id, at, outcome))

    def _note(  # noqa: PLR0913, PLR0917  # all that is known
        self,
        chat: Conversation,
        plan: Plan,
        mode: str,
        outcome: Outcome,
        asked_at: float,
        turn: Turn | None,
        edits: int | None = None,
    ) -> None:
        self._journal.message(
            Asked(
                plan,
                mode,
                outcome,
                asked_at,
                time.time(),
                turn.chat_id if turn else chat.chat_id,
                turn.turn_id if turn else None,
                edits,
            )
        )
        if mode == "interrupt" and outcome is not Outcome.REFUSED:
            self._journal.stop(Stop(str(chat.chat_id), None, asked_at, "interrupting message"))

    def _once(self, ask: Callable[[], Any]) -> Any:
        try:
            return self._call(ask)
        except Rejected:
            return None

    def _call(self, ask: Callable[[], Any]) -> Any:
        """Make a call; None if it came to nothing, for any reason but a refusal."""
        self.tally.calls += 1
        try:
            return ask()
        except Rejected:
            raise
        except Exception as error:  # noqa: BLE001  # servers and workers are away, in any way
            name = type(error).__name__
            self.tally.troubles[name] = self.tally.troubles.get(name, 0) + 1
            self._give_up.wait(0.2)
            return None


def drivers(
    make_client: Callable[[], Client],
    journal: Journal,
    seed: int,
    chats: int,
    mix: frozenset[Mix] = ALL,
) -> list[Driver]:
    """As many as these chats need."""
    starts = range(0, chats, CHATS_PER_DRIVER)
    return [
        Driver(make_client, journal, seed, range(at, min(at + CHATS_PER_DRIVER, chats)), mix)
        for at in starts
    ]
