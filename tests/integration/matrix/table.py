"""What must happen in every cell: the table of the design, written down a second time.

Independent of `rejoinder/core/state.py` on purpose: whoever changes a move there by mistake is told
here, and whoever adds a status or a transition has to say for every combination what is to happen.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from rejoinder.core.state import Status, Transition

if TYPE_CHECKING:
    from collections.abc import Iterator

LETTERS = {
    "W": Status.WAITING,
    "P": Status.PENDING,
    "R": Status.RUNNING,
    "I": Status.INTERRUPTING,
    "A": Status.REQUIRES_ACTION,
    "S": Status.SLEEPING,
    "E": Status.ERROR,
}
REFUSED = "x"
UNCHANGED = "="

# The columns: a status, with a queue (q), archived ('). The cells: the status that follows,
# x: refused, =: accepted, and nothing changes.
COLUMNS = "W   W'  P   Pq  R   Rq  I   Iq  A   Aq  S   Sq  E   Eq  E'  Eq'".split()  # noqa: SIM905  # a heading
CELLS = {
    Transition.SEND: """
               P   x   P   P   R   R   I   I   A   A   S   S   P   P   x   x""",
    Transition.SEND_INTERRUPT: """
               P   x   P   P   I   I   I   I   P   P   P   P   P   P   x   x""",
    Transition.SEND_STEER: """
               P   x   P   P   R   R   I   I   A   A   S   S   P   P   x   x""",
    Transition.SEND_REJECT: """
               P   x   x   x   x   x   x   x   x   x   x   x   P   P   x   x""",
    Transition.EDIT: """
               P   x   P   P   P   P   P   P   P   P   P   P   P   P   x   x""",
    Transition.INTERRUPT: """
               =   =   W   P   I   I   =   =   W   P   W   P   =   =   =   =""",
    Transition.PROMOTE_QUEUED: """
               x   x   x   P   x   I   x   I   x   P   x   P   x   P   x   x""",
    Transition.DELETE_QUEUED: """
               x   x   x   P   x   R   x   I   x   A   x   S   x   E   x   x""",
    Transition.SUBMIT_RESULTS: """
               x   x   x   x   x   x   x   x   P   P   x   x   x   x   x   x""",
    Transition.APPROVE: """
               x   x   x   x   x   x   x   x   P   P   x   x   x   x   x   x""",
    Transition.REQUEST_COMPACTION: """
               P   x   x   x   x   x   x   x   x   x   x   x   P   P   x   x""",
    Transition.RETRY: """
               P   x   x   x   x   x   x   x   x   x   x   x   P   P   x   x""",
    Transition.ARCHIVE: """
               W   =   x   x   x   x   x   x   x   x   x   x   E   E   =   =""",
    Transition.UNARCHIVE: """
               =   W   x   x   x   x   x   x   x   x   x   x   =   =   E   E""",
    Transition.SET_BUDGET: """
               W   W   P   P   R   R   I   I   A   A   S   S   E   E   E   E""",
    Transition.SET_TITLE: """
               W   W   P   P   R   R   I   I   A   A   S   S   E   E   E   E""",
    Transition.SET_LABELS: """
               W   W   P   P   R   R   I   I   A   A   S   S   E   E   E   E""",
    Transition.CLAIM: """
               x   x   R   R   x   x   x   x   x   x   x   x   x   x   x   x""",
    Transition.RECORD: """
               x   x   x   x   R   R   x   x   x   x   x   x   x   x   x   x""",
    Transition.START_TOOLS: """
               x   x   x   x   R   R   x   x   x   x   x   x   x   x   x   x""",
    Transition.COMMIT: """
               x   x   x   x   P   P   x   x   x   x   x   x   x   x   x   x""",
    Transition.STORE_COMPACTION: """
               x   x   x   x   P   P   x   x   x   x   x   x   x   x   x   x""",
    Transition.FINISH_TURN: """
               x   x   x   x   W   P   x   x   x   x   x   x   x   x   x   x""",
    Transition.RETRY_LATER: """
               x   x   x   x   P   P   x   x   x   x   x   x   x   x   x   x""",
    Transition.REQUIRE_ACTION: """
               x   x   x   x   A   A   x   x   x   x   x   x   x   x   x   x""",
    Transition.EXCEED_BUDGET: """
               x   x   x   x   A   A   x   x   x   x   x   x   x   x   x   x""",
    Transition.SLEEP: """
               x   x   x   x   S   S   x   x   x   x   x   x   x   x   x   x""",
    Transition.FAIL: """
               x   x   x   x   E   E   x   x   x   x   x   x   x   x   x   x""",
    Transition.RELEASE: """
               x   x   x   x   P   P   W   P   x   x   x   x   x   x   x   x""",
    Transition.FINISH_INTERRUPT: """
               x   x   x   x   x   x   W   P   x   x   x   x   x   x   x   x""",
    Transition.WAKE: """
               =   =   P   P   R   R   I   I   A   A   P   P   E   E   E   E""",
    Transition.EXPIRE: """
               x   x   x   x   x   x   x   x   P   P   P   P   x   x   x   x""",
    Transition.RECOVER: """
               x   x   x   x   P   P   W   P   x   x   x   x   x   x   x   x""",
    Transition.RECONCILE: """
               =   =   =   =   =   =   =   =   =   =   =   =   =   =   =   =""",
}

# Second targets, which need a situation of their own (test_turns, test_calls, test_reconcile).
_P, _A, _S = Status.PENDING, Status.REQUIRES_ACTION, Status.SLEEPING
ALSO: dict[tuple[Transition, str], set[Status]] = {
    (Transition.COMMIT, "R"): {Status.RUNNING},  # the worker keeps it for its next step
    (Transition.STORE_COMPACTION, "R"): {Status.WAITING},  # a turn that only compacts
    **{(Transition.SLEEP, column): {_P} for column in ("R", "Rq")},  # the wake-up came first
    **{(Transition.EXCEED_BUDGET, column): {_P} for column in ("R", "Rq")},  # it was raised
    **{(Transition.WAKE, column): {_S} for column in ("S", "Sq")},  # other calls are still open
    **{(Transition.SUBMIT_RESULTS, column): {_A} for column in ("A", "Aq")},  # more is asked
    **{(Transition.APPROVE, column): {_A} for column in ("A", "Aq")},
    **{(Transition.SET_BUDGET, column): {_P} for column in ("A", "Aq")},  # it waited for that
    # Others have time; nobody raised the budget.
    **{(Transition.EXPIRE, column): {_A, Status.ERROR} for column in ("A", "Aq")},
    **{(Transition.EXPIRE, column): {_S} for column in ("S", "Sq")},
    **{(Transition.RECOVER, column): {Status.ERROR} for column in ("R", "Rq")},  # the last crash
    **{(Transition.RECONCILE, column): {Status.ERROR} for column in COLUMNS if column[0] != "E"},
}


@dataclass(frozen=True)
class State:
    """One column: what a chat is like before the transition."""

    status: Status
    queued: bool
    archived: bool

    @classmethod
    def named(cls, column: str) -> State:
        return cls(LETTERS[column[0]], "q" in column, "'" in column)

    def __str__(self) -> str:
        queue, archived = " queued" if self.queued else "", " archived" if self.archived else ""
        return f"{self.status}{queue}{archived}"


@dataclass(frozen=True)
class Cell:
    """One transition, asked for in one state, and the literal's word for what follows."""

    transition: Transition
    column: str
    word: str

    @property
    def state(self) -> State:
        return State.named(self.column)

    @property
    def target(self) -> Status:
        return self.state.status if self.word == UNCHANGED else LETTERS[self.word]

    def __str__(self) -> str:
        return f"{self.transition}-{self.state}".replace(" ", "_")


STATES = [State.named(column) for column in COLUMNS]
IMPOSSIBLE = [
    state
    for status, queued, archived in product(Status, (False, True), (False, True))
    if (state := State(status, queued, archived)) not in STATES
]


def cells() -> Iterator[Cell]:
    """Every cell of the literal."""
    for transition, line in CELLS.items():
        for column, word in zip(COLUMNS, line.split(), strict=True):
            yield Cell(transition, column, word)
