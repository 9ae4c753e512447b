"""The statuses of a chat and the one table of what may change them.

This is the whole state machine as data. `models/machine` obeys it (every transition checks the
table before it writes and again after), the matrix test walks it cell by cell, and the diagram and
table in ARCHITECTURE.md are generated from it. To add a status or a transition, start here and
follow the type checker and the matrix test.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """What a chat is doing."""

    WAITING = "waiting"
    PENDING = "pending"
    RUNNING = "running"
    INTERRUPTING = "interrupting"
    REQUIRES_ACTION = "requires_action"
    SLEEPING = "sleeping"
    ERROR = "error"


MEANING: Mapping[Status, str] = {
    Status.WAITING: "nothing to do; the user's turn",
    Status.PENDING: "runnable; a worker should take it (not before `run_after`, if set)",
    Status.RUNNING: "a worker is on it, under a lease",
    Status.INTERRUPTING: "stop was asked for; the owner is to save what was produced",
    Status.REQUIRES_ACTION: "somebody outside has to act (client-side tool, approval, budget)",
    Status.SLEEPING: "waits for child chats or for another app's task",
    Status.ERROR: "stopped, with a structured `last_error`",
}

AT_REST = frozenset({Status.WAITING, Status.ERROR})
"""No turn is open, nobody works on it; the only statuses a chat can be archived in."""
BUSY = frozenset(Status) - AT_REST
"""A turn is open."""
LEASED = frozenset({Status.RUNNING, Status.INTERRUPTING})
"""A worker owns the chat."""
PARKED = frozenset({Status.REQUIRES_ACTION, Status.SLEEPING})
"""Waits for something outside, with a deadline, holding no worker."""


class Actor(StrEnum):
    """Who may ask for a transition."""

    APP = "app"
    WORKER = "worker"
    SWEEPER = "sweeper"
    CALLBACK = "child, callback"
    OPERATOR = "operator"


class Transition(StrEnum):
    """Every way in which a chat's execution state changes."""

    CREATE = "create"
    SEND = "send (queue)"
    SEND_INTERRUPT = "send (interrupt)"
    SEND_STEER = "send (steer)"
    SEND_REJECT = "send (reject)"
    EDIT = "edit"
    INTERRUPT = "interrupt"
    PROMOTE_QUEUED = "promote_queued"
    DELETE_QUEUED = "delete_queued"
    SUBMIT_RESULTS = "submit_results"
    APPROVE = "approve (or deny)"
    REQUEST_COMPACTION = "request_compaction"
    RETRY = "retry"
    ARCHIVE = "archive"
    UNARCHIVE = "unarchive"
    SET_BUDGET = "set_budget"
    SET_TITLE = "set_title"
    SET_LABELS = "set_labels"
    CLAIM = "claim"
    RECORD = "record"
    START_TOOLS = "start_tools"
    COMMIT = "commit"
    STORE_COMPACTION = "store_compaction"
    FINISH_TURN = "finish_turn"
    RETRY_LATER = "retry_later"
    REQUIRE_ACTION = "require_action"
    EXCEED_BUDGET = "exceed_budget"
    SLEEP = "sleep"
    FAIL = "fail"
    RELEASE = "release"
    FINISH_INTERRUPT = "finish_interrupt"
    WAKE = "wake"
    EXPIRE = "expire"
    RECOVER = "recover"
    RECONCILE = "reconcile"


@dataclass(frozen=True)
class To:
    """Where one transition leads from one status; the usual target first.

    `empty` and `filled` are for a chat without and with queued messages; an empty tuple means that
    this combination is refused. `unchanged` is a polite no-op: accepted, nothing written.
    """

    empty: tuple[Status, ...]
    filled: tuple[Status, ...]
    unchanged: bool = False

    def targets(self, *, queued: bool) -> tuple[Status, ...]:
        """The statuses that may follow."""
        return self.filled if queued else self.empty


def to(*targets: Status) -> To:
    """Lead to these, whether or not messages are queued."""
    return To(targets, targets)


def stays(status: Status) -> To:
    """Accept and change nothing."""
    return To((status,), (status,), unchanged=True)


@dataclass(frozen=True)
class Rule:
    """One row of the table: who may do it, from which statuses, and what it means."""

    by: tuple[Actor, ...]
    says: str
    moves: Mapping[Status | None, To]
    otherwise: str = "leave, and write nothing"
    """What to do when it is refused."""
    on_archived: bool = False


_W, _P, _R, _I = Status.WAITING, Status.PENDING, Status.RUNNING, Status.INTERRUPTING
_A, _S, _E = Status.REQUIRES_ACTION, Status.SLEEPING, Status.ERROR
_NEXT = To(empty=(_W,), filled=(_P,))  # the user's turn, or the queue's head becomes the next one
_APP, _WORKER, _SWEEPER = (Actor.APP,), (Actor.WORKER,), (Actor.SWEEPER,)
_GONE = "its queue is empty: the message was promoted or deleted already; read the queue again"
_REST_FIRST = "wait until the chat is at rest, or interrupt it first"

TABLE: Mapping[Transition, Rule] = {
    Transition.CREATE: Rule(
        _APP, "a chat with its first message", {None: To(empty=(_P,), filled=())}
    ),
    Transition.SEND: Rule(
        _APP,
        "at rest: into history (behind a backlog: appended, the head is promoted); "
        "busy: queued, 20 at most",
        {_W: to(_P), _E: to(_P), _P: to(_P), _R: to(_R), _I: to(_I), _A: to(_A), _S: to(_S)},
    ),
    Transition.SEND_INTERRUPT: Rule(
        _APP,
        "busy: queued, and the turn is stopped; without an owner to wait for, open calls are "
        "answered and the head is promoted at once",
        {_W: to(_P), _E: to(_P), _P: to(_P), _R: to(_I), _I: to(_I), _A: to(_P), _S: to(_P)},
    ),
    Transition.SEND_STEER: Rule(
        _APP,
        "busy: into history at the next step, within the turn that is open; at rest: as "
        "`send (queue)`",
        {_W: to(_P), _E: to(_P), _P: to(_P), _R: to(_R), _I: to(_I), _A: to(_A), _S: to(_S)},
    ),
    Transition.SEND_REJECT: Rule(
        _APP,
        "at rest: as `send (queue)`; busy: refused",
        {_W: to(_P), _E: to(_P)},
        "wait until it has finished, or send with when_busy 'queue', 'steer' or 'interrupt'",
    ),
    Transition.EDIT: Rule(
        _APP,
        "a user message is replaced; later history soft-deleted, queue cleared, lease dropped",
        {_W: to(_P), _E: to(_P), _P: to(_P), _R: to(_P), _I: to(_P), _A: to(_P), _S: to(_P)},
    ),
    Transition.INTERRUPT: Rule(
        _APP,
        "stop; open calls are answered synthetically, the queue's head is promoted",
        {
            _R: to(_I),
            _P: _NEXT,
            _A: _NEXT,
            _S: _NEXT,
            _W: stays(_W),
            _E: stays(_E),
            _I: stays(_I),
        },
        on_archived=True,
    ),
    Transition.PROMOTE_QUEUED: Rule(
        _APP,
        "a queued message goes to the front: into history at once, or behind an interrupt",
        {
            _E: To((), (_P,)),
            _P: To((), (_P,)),
            _A: To((), (_P,)),
            _S: To((), (_P,)),
            _R: To((), (_I,)),
            _I: To((), (_I,)),
        },
        _GONE,
    ),
    Transition.DELETE_QUEUED: Rule(
        _APP,
        "a queued message is removed",
        {s: To((), (s,)) for s in (_E, _P, _R, _I, _A, _S)},
        _GONE,
    ),
    Transition.SUBMIT_RESULTS: Rule(
        _APP,
        "results for exactly the open client calls; one winner; approvals may still be wanted",
        {_A: to(_P, _A)},
        "only a chat that requires action takes results, once; read the chat again",
    ),
    Transition.APPROVE: Rule(
        _APP,
        "calls are allowed, or denied with a reason for the model; each is decided once",
        {_A: to(_P, _A)},
        "nothing waits for approval any more; read the chat again",
    ),
    Transition.REQUEST_COMPACTION: Rule(
        _APP, "a turn that only compacts", {_W: to(_P), _E: to(_P)}, _REST_FIRST
    ),
    Transition.RETRY: Rule(
        _APP, "a new turn over the same history", {_W: to(_P), _E: to(_P)}, _REST_FIRST
    ),
    Transition.ARCHIVE: Rule(
        _APP,
        "the whole tree, all at rest",
        {_W: to(_W), _E: to(_E)},
        _REST_FIRST,
        on_archived=True,
    ),
    Transition.UNARCHIVE: Rule(
        _APP, "the whole tree", {_W: to(_W), _E: to(_E)}, "it is not archived", on_archived=True
    ),
    Transition.SET_BUDGET: Rule(
        _APP,
        "what a tree may spend; chats that wait for more of it go on",
        {**{s: to(s) for s in (_W, _P, _R, _I, _S, _E)}, _A: to(_A, _P)},
        on_archived=True,
    ),
    Transition.SET_TITLE: Rule(
        (Actor.APP, Actor.WORKER),
        "a name for people; a model never overwrites a person's",
        {s: to(s) for s in (_W, _P, _R, _I, _A, _S, _E)},
        on_archived=True,
    ),
    Transition.SET_LABELS: Rule(
        _APP,
        "labels are added, changed or removed; the others stay",
        {s: to(s) for s in (_W, _P, _R, _I, _A, _S, _E)},
        on_archived=True,
    ),
    Transition.CLAIM: Rule(_WORKER, "due: a new lease", {_P: to(_R)}),
    Transition.RECORD: Rule(
        _WORKER, "an assistant message with tool calls, before its tools run", {_R: to(_R)}
    ),
    Transition.START_TOOLS: Rule(
        _WORKER, "calls of an earlier step are about to run", {_R: to(_R)}
    ),
    Transition.COMMIT: Rule(
        _WORKER,
        "the step is done and there is more to do: by anybody, or by the same worker at once, under"
        " a new lease",
        {_R: To(empty=(_P, _R), filled=(_P,))},
    ),
    Transition.STORE_COMPACTION: Rule(
        _WORKER,
        "a boundary in history; a turn that only compacts is over, another goes on",
        {_R: To(empty=(_P, _W), filled=(_P,))},
    ),
    Transition.FINISH_TURN: Rule(_WORKER, "the answer is complete", {_R: _NEXT}),
    Transition.RETRY_LATER: Rule(_WORKER, "not before `run_after`; `attempt` + 1", {_R: to(_P)}),
    Transition.REQUIRE_ACTION: Rule(
        _WORKER, "park for answers from outside, with a deadline", {_R: to(_A)}
    ),
    Transition.EXCEED_BUDGET: Rule(
        _WORKER,
        "not enough left for the next call: park until it is raised; runnable at once if it was",
        {_R: to(_A, _P)},
    ),
    Transition.SLEEP: Rule(
        _WORKER,
        "park for a child or a task, with a deadline; runnable at once if it came first",
        {_R: to(_S, _P)},
    ),
    Transition.FAIL: Rule(_WORKER, "stopped with `last_error`; the queue stays", {_R: to(_E)}),
    Transition.RELEASE: Rule(
        _WORKER, "shutdown: handed back, nothing counted", {_R: to(_P), _I: _NEXT}
    ),
    Transition.FINISH_INTERRUPT: Rule(
        (Actor.WORKER, Actor.SWEEPER),
        "partial output first, then the queue's head",
        {_I: _NEXT},
    ),
    Transition.WAKE: Rule(
        (Actor.CALLBACK,),
        "what it slept for has come; still asleep while other calls are open; kept on the call if "
        "it comes before `sleep` or after the turn",
        {
            _S: to(_P, _S),
            _R: to(_R),
            _P: to(_P),
            _A: to(_A),
            _W: stays(_W),
            _E: to(_E),
            _I: to(_I),
        },
        on_archived=True,
    ),
    Transition.EXPIRE: Rule(
        _SWEEPER,
        "calls past their deadline get their declared default, or a timeout; parked still while "
        "others have time; a budget that nobody raised is an error",
        {_A: to(_P, _A, _E), _S: to(_P, _S)},
    ),
    Transition.RECOVER: Rule(
        _SWEEPER,
        "the owner is dead: `crashes` + 1, at the limit `worker_lost`; "
        "an interrupt of a dead owner is finished",
        {_R: to(_P, _E), _I: _NEXT},
    ),
    Transition.RECONCILE: Rule(
        (Actor.OPERATOR,),
        "an impossible combination becomes `error`; a possible one stays",
        {s: to(_E, s) for s in (_W, _P, _R, _I, _A, _S, _E)},
        on_archived=True,
    ),
}


def targets(
    transition: Transition, status: Status | None, *, queued: bool, archived: bool = False
) -> tuple[Status, ...]:
    """The statuses this transition may lead to from here; empty means refused."""
    rule = TABLE[transition]
    if archived and not rule.on_archived:
        return ()
    move = rule.moves.get(status)
    return move.targets(queued=queued) if move else ()


def possible(status: Status, *, queued: bool, archived: bool) -> bool:
    """Whether a chat may be like this at all."""
    if status is Status.WAITING and queued:
        return False  # a message is never stranded in the queue of a waiting chat
    return not archived or status in AT_REST


def edges() -> Iterator[tuple[Status | None, Transition, Status]]:
    """Every move that changes the status, for the diagram."""
    for transition, rule in TABLE.items():
        for source, move in rule.moves.items():
            for target in dict.fromkeys((*move.empty, *move.filled)):
                if target is not source:
                    yield source, transition, target
