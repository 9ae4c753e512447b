"""The office of `make chaos`: what is drawn for a call is done about it, and noted as it went."""

import threading
from typing import Any

from rejoinder.core.errors import Rejected
from scripts.chaos_parts.journal import Journal, Outcome
from scripts.chaos_parts.office import CLERKS, Clerk

CHAT = "00000000-0000-0000-0000-000000000000"


class Desk:
    """A client of a chat that asks for these calls; the first who speaks about one is heard."""

    def __init__(self, *calls: dict[str, Any], budget: Any = None, fails: bool = False) -> None:
        self.calls = list(calls)
        self.budget = budget
        self.fails = fails
        self.said: list[tuple[str, Any]] = []
        self.lock = threading.Lock()

    def list_chats(self, owner: str, **_: Any) -> dict[str, Any]:
        return {"chats": [{"id": CHAT}] if owner == "chaos" else []}

    def get_chat(self, chat_id: str) -> dict[str, Any]:
        more = {"budget": self.budget, "tree_usage": {"tokens": 100}, "root_id": chat_id}
        return {
            "status": "requires_action",
            "turn_id": "turn",
            "open_calls": list(self.calls),
            **more,
        }

    def approve(self, _: str, ids: list[str], **__: Any) -> None:
        self._hear("approve", ids)

    def deny(self, _: str, ids: list[str], **__: Any) -> None:
        self._hear("deny", ids)

    def submit_tool_results(self, _: str, results: list[dict[str, Any]], **__: Any) -> None:
        self._hear("answer", [result["call_id"] for result in results])

    def set_budget(self, _: str, *, tokens: int) -> None:
        self.said.append(("budget", tokens))

    def _hear(self, what: str, ids: list[str]) -> None:
        if self.fails:
            raise TimeoutError
        with self.lock:
            if not set(ids) <= {call["call_id"] for call in self.calls}:
                raise Rejected("Nobody asks for that", "read the chat again")
            self.calls = [call for call in self.calls if call["call_id"] not in ids]
            self.said.append((what, ids))


def call(name: str, wish: str, number: int = 1) -> dict[str, Any]:
    arguments = {"nonce": f"nonce{number}", "seconds": 0, "wish": wish}
    return {"call_id": f"call{number}", "name": name, "arguments": arguments}


def at_work(desk: Desk) -> Journal:
    """One look of the clerk whose chat it is."""
    journal = Journal()
    clerk = Clerk(lambda: desk, journal, 0)  # type: ignore[arg-type,return-value]
    assert int(CHAT[-4:], 16) % CLERKS == 0
    clerk._look_at(CHAT, [desk, desk])  # type: ignore[list-item]
    return journal


def outcomes(journal: Journal) -> list[tuple[str, str]]:
    return sorted((decision.what, str(decision.outcome)) for decision in journal.decisions)


def test_what_is_wished_is_done() -> None:
    assert outcomes(at_work(Desk(call("ledger_asked", "approve")))) == [("approve", "accepted")]
    assert outcomes(at_work(Desk(call("ledger_asked", "deny")))) == [("deny", "accepted")]
    assert outcomes(at_work(Desk(call("ask_office", "answer")))) == [("answer", "accepted")]


def test_of_two_who_act_at_once_one_is_heard() -> None:
    both = outcomes(at_work(Desk(call("ledger_asked", "both"))))
    assert [what for what, _ in both] == ["approve", "deny"]
    assert sorted(outcome for _, outcome in both) == ["accepted", "refused"]
    journal = at_work(Desk(call("ask_office", "twice")))
    assert outcomes(journal) == [("answer", "accepted"), ("answer", "refused")]
    assert len({decision.words for decision in journal.decisions}) == 2


def test_what_is_to_be_left_is_left_and_so_are_those_that_must_be_answered_with_it() -> None:
    desk = Desk(call("ask_briefly", "leave"), call("ask_office", "answer", 2))
    assert outcomes(at_work(desk)) == []
    assert outcomes(at_work(Desk(call("ledger_asked", "leave")))) == []


def test_calls_that_are_all_to_be_allowed_are_allowed_together() -> None:
    desk = Desk(call("ledger_asked", "approve"), call("ledger_agreed", "approve", 2))
    assert len(at_work(desk).decisions) == 2
    assert desk.said == [("approve", ["call1", "call2"])]


def test_no_answer_is_not_known() -> None:
    journal = at_work(Desk(call("ledger_asked", "approve"), fails=True))
    assert [decision.outcome for decision in journal.decisions] == [Outcome.UNKNOWN]


def test_a_budget_is_raised_where_there_is_one() -> None:
    desk = Desk(budget={"tokens": 1})
    at_work(desk)
    ((what, tokens),) = desk.said
    assert what == "budget"
    assert tokens > 100
    desk = Desk()
    at_work(desk)
    assert desk.said == []
