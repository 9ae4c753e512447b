"""People who are asked: they look for chats that require action; allow, deny, answer, give more.

What they do about a call is its `wish`, which the plan drew: approve, deny, answer; `both` and
`twice` let two of them act at once, of whom one wins; `leave` is left to its deadline. They know
`rejoinder.Client` and nothing else, and everything that they say goes into the journal.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from rejoinder.client import Client
from rejoinder.core.errors import Rejected
from scripts.chaos_parts.journal import Decision, Journal, Outcome
from scripts.chaos_parts.ledger import CLIENT_TOOLS, done

CLERKS = 3
LOOK_SECONDS = 0.3
OWNER = "chaos"
MORE_TOKENS = 4_000
TO_ANSWER = frozenset(tool["name"] for tool in CLIENT_TOOLS)
TO_ALLOW = frozenset({"ledger_asked", "ledger_agreed"})

Open = dict[str, Any]
"""A call, as `get_chat` shows it."""


def answer(nonce: str, hand: int) -> str:
    """What a clerk says to a client-side call; which hand it was can be seen."""
    return f"{done(nonce)} by hand {hand}"


def reason(nonce: str) -> str:
    """Why a clerk denies a call."""
    return f"no {nonce}"


class Clerk:
    """A thread with two clients: one for each hand."""

    def __init__(self, make_client: Callable[[], Client], journal: Journal, number: int) -> None:
        """Take care of every so-manieth chat."""
        self._make_client = make_client
        self._journal = journal
        self._number = number
        self._closing = threading.Event()
        self._decided: set[tuple[str, str]] = set()
        self.raised: Counter[str] = Counter()
        self.thread = threading.Thread(target=self._run, name=f"clerk{number}", daemon=True)

    def close(self) -> None:
        """Go home."""
        self._closing.set()

    def _run(self) -> None:
        with ExitStack() as stack:
            hands = [stack.enter_context(self._make_client()) for _ in range(2)]
            while not self._closing.wait(LOOK_SECONDS):
                for chat_id in self._asking(hands[0]):
                    self._look_at(chat_id, hands)

    def _asking(self, client: Client) -> list[str]:
        try:
            page = client.list_chats(OWNER, status="requires_action", limit=200)
        except Exception:  # noqa: BLE001  # servers and workers are away, in any way
            return []
        ids = [str(chat["id"]) for chat in page["chats"]]
        return [each for each in ids if int(each[-4:], 16) % CLERKS == self._number]

    def _look_at(self, chat_id: str, hands: Sequence[Client]) -> None:
        try:
            chat = hands[0].get_chat(chat_id)
        except Exception:  # noqa: BLE001  # as above
            return
        if chat["status"] != "requires_action":
            return
        if chat.get("budget") and not chat["open_calls"]:
            self._give_more(chat, hands[0])
            return
        calls = [c for c in chat["open_calls"] if (chat_id, c["call_id"]) not in self._decided]
        turn_id = chat["turn_id"]
        self._allow(chat_id, turn_id, [c for c in calls if c["name"] in TO_ALLOW], hands)
        self._answer(chat_id, turn_id, [c for c in calls if c["name"] in TO_ANSWER], hands)

    def _give_more(self, chat: dict[str, Any], client: Client) -> None:
        """Raise the budget that a chat waits for. It is the root's, and only grows."""
        root_id = str(chat["root_id"])
        self.raised[root_id] += 1  # a long prompt may need more than what was given
        tokens = int(chat["tree_usage"]["tokens"]) + MORE_TOKENS * self.raised[root_id]
        with suppress(Exception):  # as above; whoever still waits is found again
            client.set_budget(root_id, tokens=tokens)

    def _allow(
        self, chat_id: str, turn_id: str, calls: Sequence[Open], hands: Sequence[Client]
    ) -> None:
        if {call["arguments"]["wish"] for call in calls} == {"approve"}:
            self._approving(chat_id, turn_id, calls, hands[0])()
            return
        for call in calls:
            ways = {
                "approve": [self._approving(chat_id, turn_id, [call], hands[0])],
                "deny": [self._denying(chat_id, turn_id, call, hands[0])],
                "both": [
                    self._approving(chat_id, turn_id, [call], hands[0]),
                    self._denying(chat_id, turn_id, call, hands[1]),
                ],
            }
            _together(ways.get(call["arguments"]["wish"], []))

    def _approving(
        self, chat_id: str, turn_id: str, calls: Sequence[Open], client: Client
    ) -> Callable[[], None]:
        ids = [call["call_id"] for call in calls]
        return lambda: self._say(
            chat_id,
            calls,
            "approve",
            [""] * len(ids),
            lambda: client.approve(chat_id, ids, turn_id=turn_id),
        )

    def _denying(
        self, chat_id: str, turn_id: str, call: Open, client: Client
    ) -> Callable[[], None]:
        ids, why = [call["call_id"]], reason(call["arguments"]["nonce"])
        return lambda: self._say(
            chat_id,
            [call],
            "deny",
            [why],
            lambda: client.deny(chat_id, ids, reason=why, turn_id=turn_id),
        )

    def _answer(
        self, chat_id: str, turn_id: str, calls: Sequence[Open], hands: Sequence[Client]
    ) -> None:
        """Answer all client-side calls of a chat: it takes no fewer. Those to leave come first."""
        wishes = {call["arguments"]["wish"] for call in calls}
        if not calls or "leave" in wishes:
            return

        def answering(hand: int) -> Callable[[], None]:
            words = [answer(call["arguments"]["nonce"], hand) for call in calls]
            results = [
                {"call_id": call["call_id"], "content": said}
                for call, said in zip(calls, words, strict=True)
            ]
            return lambda: self._say(
                chat_id,
                calls,
                "answer",
                words,
                lambda: hands[hand].submit_tool_results(chat_id, results, turn_id=turn_id),
            )

        _together([answering(hand) for hand in range(2 if "twice" in wishes else 1)])

    def _say(
        self,
        chat_id: str,
        calls: Sequence[Open],
        what: str,
        words: Sequence[str],
        ask: Callable[[], Any],
    ) -> None:
        """Say it once, and note what came of it. What is not certain is looked at again."""
        outcome, asked_at = Outcome.ACCEPTED, time.time()
        try:
            ask()
        except Rejected:
            outcome = Outcome.REFUSED
        except Exception:  # noqa: BLE001  # as above
            outcome = Outcome.UNKNOWN
        for call, said in zip(calls, words, strict=True):
            if outcome is Outcome.ACCEPTED:
                self._decided.add((chat_id, call["call_id"]))
            self._journal.decision(
                Decision(chat_id, call["call_id"], what, said, outcome, asked_at, time.time())
            )


def _together(ways: Sequence[Callable[[], None]]) -> None:
    """Do these at the same time."""
    others = [threading.Thread(target=way, daemon=True) for way in ways[1:]]
    for other in others:
        other.start()
    for way in ways[:1]:
        way()
    for other in others:
        other.join()


def clerks(make_client: Callable[[], Client], journal: Journal) -> list[Clerk]:
    """Everybody at the office."""
    return [Clerk(make_client, journal, number) for number in range(CLERKS)]
