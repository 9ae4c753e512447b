"""The database and the model, side by side: each act is done to both, and they must agree.

`act` runs one transition and its prediction and compares the answers; `compare` compares every row
of every chat. The random tests choose what to do; this module only knows how to do it twice.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import text
from uuid_utils.compat import uuid7

from models import claims, machine
from models.machine import NewChat
from models.sweep import sweep
from rejoinder.core.effects import Effects, Fence
from rejoinder.core.messages import Budget, CallKind, CallPlan, Delivery, NewMessage, Role
from rejoinder.core.parts import Text, ToolCall
from tests.chats import once, words
from tests.integration.attempts import Attempts
from tests.integration.chat_model import SAME, Chat
from tests.integration.chat_rows import read_chats, shown
from tests.integration.chat_state import REST, SOON, Ask, Call, Message, Refusal, Said
from tests.integration.invariants import assert_invariants
from tests.integration.views import Readers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy import Engine
    from sqlalchemy.orm import Session

DEAD_AFTER = timedelta(minutes=10)  # longer than any example takes
NOBODY = UUID(int=0)
MODELS = (None, "scripted:one", "scripted:two")
NOT_YET = """
UPDATE rejoinder.chats SET redispatch_at = clock_timestamp() + interval '1 hour'
 WHERE redispatch_at > clock_timestamp() - interval '1 hour'
"""


@dataclass(frozen=True)
class Ids:
    """What the database chose, and a model cannot know."""

    turn: UUID = NOBODY
    queued: int | None = None
    kept: UUID | None = None
    """The new lease, if the owner keeps the chat for its next step."""


@dataclass(frozen=True)
class Plain:
    """What the assistant says, or nothing, where nobody plans how its calls are to be answered."""

    message: NewMessage | None = None
    model: Message | None = None


@dataclass(frozen=True)
class Asked:
    """An assistant's message for the machine, and the same for the model."""

    message: NewMessage
    plans: Mapping[str, CallPlan]
    start: list[str]
    model: Message

    @property
    def plain(self) -> Plain:
        """The same without plans."""
        said, calls = self.model
        return Plain(self.message, (said, tuple(Call(call.id) for call in calls)))


class SideBySide:
    """A few chats and workers, twice."""

    def __init__(self, engine: Engine) -> None:
        """Begin with nothing."""
        self.engine = engine
        self.attempts = Attempts(engine)
        self.chats: dict[UUID, Chat] = {}
        self.fences: dict[UUID, list[Fence]] = {}
        self.keys: dict[tuple[str, str], tuple[UUID | None, UUID]] = {}
        self.workers: dict[UUID, str] = {}
        self.count = 0
        self.trace: list[str] = []
        self.readers = Readers(engine, self.agree)
        self._sql("TRUNCATE rejoinder.chats, rejoinder.workers RESTART IDENTITY CASCADE")
        for _ in range(3):
            self.register(uuid7())

    # Doing one thing to both.

    def act(
        self,
        what: str,
        chat: Chat,
        run: Callable[[Session], Effects],
        predict: Callable[[Chat, Ids], str | None],
    ) -> None:
        """Run a transition, predict it, and compare what the caller is told."""
        before = deepcopy(chat)
        got = self.attempts.run(run, chat.id)
        if isinstance(got, Effects):
            self.readers.hear(got)
            kept = got.fence.lease_id if got.fence and got.dispatch else None
            ids = Ids(got.turn_id or NOBODY, got.queued_id, kept)
            if got.fence:
                self.fences[chat.id].append(got.fence)
        else:
            ids = Ids()
        expected = self._predict(chat, lambda model: predict(model, ids))
        self._told(f"{self.name(before)}: {what}", got)
        if expected == SAME:
            self.agree("the versions", _versions(got), (before.snapshot, *_model_versions(before)))
            self.agree("the change", getattr(got, "changed", got), expected=False)
        elif expected is not None:
            self.agree("the refusal", type(got).__name__, expected)
        else:
            self._compare_effects(before, chat, got)

    def create(self, owner: str, parent: Chat | None, key: str | None = None) -> None:
        """Create a chat, or repeat the request that did."""
        said = f"with {key}" if key else self.word()
        parent_id = parent.id if parent else None
        model = None if key else MODELS[self.count % 3]
        new = NewChat(owner, words(said), parent_id=parent_id, model=model or "")
        asked = {"owner": owner, "request": f"{said} {parent_id}"}
        got = self.attempts.run(lambda tx: once(tx, key, machine.create, new, **asked))
        self._told(f"create for {owner} under {parent and self.name(parent)}, key {key}", got)
        used = self.keys.get((owner, key or ""))
        wrong_parent = parent and (parent.owner != owner or self.chats[parent.root].archived)
        if used and key:
            if used[0] != parent_id:
                self.agree("the refusal", type(got).__name__, "Rejected")
            else:
                self.agree("the chat", (got.chat_id, got.dispatch), (used[1], None))
        elif wrong_parent:
            self.agree("the refusal", type(got).__name__, "Rejected")
        else:
            chat = Chat(got.chat_id, owner, parent_id, parent.root if parent else got.chat_id)
            chat.turn, chat.turns = got.turn_id, {got.turn_id: "open"}
            chat.history = [Said("user", said, got.turn_id, model=model)]
            chat.title, chat.model = said, model or ""
            self.readers.hear(got)
            self.agree("the status", (got.status, got.dispatch is not None), ("pending", True))
            self.chats[chat.id], self.fences[chat.id] = chat, []
            if key:
                self.keys[owner, key] = (parent_id, chat.id)

    def archive(self, chat: Chat, *, archived: bool) -> None:
        """Archive or unarchive a tree."""
        move = machine.archive if archived else machine.unarchive
        got = self.attempts.run(lambda tx: move(tx, chat.id))
        self._told(f"{self.name(chat)}: {move.__name__}", got)
        tree = [each for each in self.chats.values() if each.root == chat.id]
        if chat.parent or any(each.status not in REST for each in tree):
            self.agree("the refusal", type(got).__name__, "Rejected")
            return
        changed = {each.id for each in tree if each.archived is not archived}
        self.agree("the changed chats", {e.chat_id for e in got if e.changed}, changed)
        for each in tree:
            each.snapshot += each.archived is not archived
            each.archived = archived
        self.readers.hear(*got)

    def set_budget(self, chat: Chat, tokens: int | None) -> None:
        """Say what a tree may use."""
        got = self.attempts.run(lambda tx: machine.set_budget(tx, chat.id, Budget(tokens)))
        self._told(f"{self.name(chat)}: set_budget {tokens}", got)
        if chat.parent:
            self.agree("the refusal", type(got).__name__, "Rejected")
            return
        waiting = [c for c in self.chats.values() if c.root == chat.id and c.action == "budget"]
        for each in {each.id: each for each in (chat, *waiting)}.values():
            self._predict(each, lambda model: model.set_budget(tokens))
        moved = {each.id: each.status for each in (chat, *waiting)}
        self.agree("the moved", {e.chat_id: str(e.status) for e in got}, moved)
        self.readers.hear(*got)

    def claim(self, chat: Chat, worker: UUID) -> None:
        """Claim a chat for a worker."""
        got = claims.claim(self.engine, chat.id, worker, dead_after=DEAD_AFTER)
        state = self.workers[worker]
        self._told(f"{self.name(chat)}: claim by a worker that is {state}", got is not None)
        due = chat.status == "pending" and not chat.delayed
        self.agree("the claim", got is not None, due and state == "alive")
        if got is not None:
            self.fences[chat.id].append(got.fence)
            self.attempts.claimed(got)
            self._predict(chat, lambda model: model.claim(got.fence.lease_id, worker))
            self.readers.tell(chat.id, got.snapshot_version, got.events)
            self.agree("its versions", got.snapshot_version, chat.snapshot)
            self.agree("its crashes", got.crashes, chat.crashes)
            self.agree(
                "its attempt and turn", (got.attempt, got.turn_id), (chat.attempt, chat.turn)
            )

    # Liveness and clocks.

    def register(self, worker: UUID) -> None:
        """Announce a worker, again or for the first time."""
        claims.register_worker(self.engine, worker, "worker")
        self.workers[worker] = "alive"

    def heartbeat(self, worker: UUID) -> None:
        """Hear of a worker, and tell it what it owns."""
        leases = claims.heartbeat(self.engine, worker)
        self._told(f"heartbeat of a worker that is {self.workers[worker]}", leases)
        if self.workers[worker] == "gone":
            self.agree("the heartbeat", leases, None)
            return
        self.workers[worker] = "alive"
        owned = {
            (c.id, c.lease, c.history_version, c.status)
            for c in self.chats.values()
            if c.worker == worker
        }
        got = {(x.chat_id, x.lease_id, x.history_version, x.status) for x in leases or ()}
        self.agree("its leases", got, owned)

    def silence(self, worker: UUID, *, long: bool) -> None:
        """Let a worker have been silent for half an hour, or for very long."""
        self._sql(
            "UPDATE rejoinder.workers SET seen_at = now() - make_interval(mins => :m)"
            " WHERE id = :id",
            id=worker,
            m=180 if long else 30,
        )
        if self.workers[worker] != "gone":
            self.workers[worker] = "long dead" if long else "dead"
        self._told(f"a worker is {self.workers[worker]}", None)

    def retire(self, worker: UUID) -> None:
        """Let a worker leave, if it owns nothing."""
        claims.retire_worker(self.engine, worker)
        self._told("a worker retires", None)
        if all(chat.worker != worker for chat in self.chats.values()):
            self.workers[worker] = "gone"

    def time_passes(self, chat: Chat) -> None:
        """Let everything that this chat waits for by the clock have come."""
        self._sql(
            "UPDATE rejoinder.chats SET run_after = run_after - interval '1 day',"
            " redispatch_at = redispatch_at - interval '1 day',"
            " deadline = deadline - interval '1 day' WHERE id = :id;"
            "UPDATE rejoinder.tool_calls SET deadline = deadline - interval '1 day'"
            " WHERE chat_id = :id",
            id=chat.id,
        )
        self._told(f"{self.name(chat)}: time passes", None)
        self.readers.moved(chat.id)
        chat.delayed = False
        chat.overdue = chat.status == "pending"
        chat.a_day_passes()

    def sweep(self) -> None:
        """Sweep, and see that exactly those were moved that had to be."""
        self._sql(NOT_YET)  # on a slow machine, too, only those are overdue whose time has passed
        swept = sweep(self.engine, dead_after=DEAD_AFTER)
        self._told("sweep", len(swept.effects))
        self.agree("the failures", swept.failed, [])
        self.readers.hear(*swept.effects)
        moved: dict[UUID, str] = {}
        bells = {chat.id for chat in self.chats.values() if chat.overdue}
        for chat in self.chats.values():
            chat.overdue = False
            if chat.worker and self.workers[chat.worker] != "alive":
                self._predict(chat, lambda model: model.recover(model.lease or NOBODY))
                moved[chat.id] = chat.status
            elif chat.status in ("requires_action", "sleeping") and chat.expired:
                self._predict(chat, Chat.expire)
                moved[chat.id] = chat.status
        self.agree("the moved", {e.chat_id: str(e.status) for e in swept.effects}, moved)
        self.agree("the bells", {d.chat_id for d in swept.dispatches}, bells)
        for worker, state in self.workers.items():
            if state == "long dead":
                self.workers[worker] = "gone"

    # Comparing.

    def compare(self) -> None:
        """Compare every row with the model, and look for broken rules."""
        try:
            rows = read_chats(self.engine)
            self.agree("the chats", set(rows), set(self.chats))
            for chat in self.chats.values():
                self.agree(f"the rows of {self.name(chat)}", rows[chat.id], shown(chat))
            self.readers.compare()
            assert_invariants(self.engine)
        except AssertionError as error:
            raise AssertionError(f"{error}\n" + "\n".join(self.trace)) from None

    def agree(self, what: str, got: object, expected: object) -> None:
        """Fail, with everything that was done so far, unless both are the same."""
        if got == expected:
            return
        if isinstance(got, dict) and isinstance(expected, dict):
            keys = [key for key in {**got, **expected} if got.get(key) != expected.get(key)]
            got, expected = ({key: d.get(key) for key in keys} for d in (got, expected))
        raise AssertionError(
            "\n".join([*self.trace, f"{what}:", f"  database {got}", f"  model    {expected}"])
        )

    def _compare_effects(self, before: Chat, chat: Chat, got: Any) -> None:
        self.agree("the refusal", type(got).__name__, "Effects")
        self.agree("the change", got.changed, expected=True)
        self.agree("the status", str(got.status), chat.status)
        self.agree("the versions", _versions(got), (chat.snapshot, *_model_versions(chat)))
        ended = {end.turn_id: (str(end.state), end.answer) for end in got.ended}
        self.agree("the ended turns", ended, chat.ended)
        self.agree("the abandoned calls", list(got.abandoned), chat.abandoned)
        self.agree("the hints", [str(hint.cause) for hint in got.hints], chat.hints)
        self.agree("what is sent", [send.call_id for send in got.sends], chat.sends)
        rested = chat.status in REST and before.status not in REST
        self.agree("who is woken", got.wake, chat.parent if rested else None)
        news = before.status != "pending" or chat.history_version != before.history_version
        kept = before.lease is not None and chat.lease not in (None, before.lease)
        rings = kept or (chat.status == "pending" and news)
        self.agree("the bell", got.dispatch is not None, rings)
        self.agree("the fence", got.fence is not None, chat.lease is not None)
        if got.queued_id is not None:
            queued = any(message.id == got.queued_id for message in chat.queue)
            self.agree("the place in the queue", queued, expected=True)

    # Small things.

    def name(self, chat: Chat) -> str:
        """A short name for a chat, by age."""
        return f"chat {[*self.chats].index(chat.id)} ({chat.status})"

    def word(self) -> str:
        """A text that was not said before."""
        self.count += 1
        return f"word {self.count}"

    def asked(self, calls: Sequence[Ask]) -> Asked:
        """An assistant's message that asks for these."""
        self.count += 1
        model = tuple(ask.call(f"c{self.count}.{n}") for n, ask in enumerate(calls))
        parts = [ToolCall(call.id, "tool", {}) for call in model]
        plans = {
            call.id: CallPlan(
                CallKind(call.kind),
                Delivery.ONCE if call.once else Delivery.IDEMPOTENT,
                f"ext-{call.id}" if call.kind == "external" else None,
                approval=call.approval == "wanted",
                seconds=None if call.patience == SOON else call.patience * 24 * 3600,
                default=call.default_answer,
                waits_for=(NOBODY,) if call.kind == "children" else (),
            )
            for call in model
        }
        said = f"says {self.count}"
        message = NewMessage(Role.ASSISTANT, (Text(said), *parts))
        started = [call.id for call in model if call.state == "started"]
        return Asked(message, plans, started, (said, model))

    def _predict(self, chat: Chat, predict: Callable[[Chat], str | None]) -> str | None:
        """Change the model; SAME or a refusal's name if it stays as it is."""
        copy = deepcopy(chat)
        copy.version, copy.ended, copy.abandoned, copy.hints = chat.snapshot + 1, {}, [], []
        copy.sends = []
        try:
            answer = predict(copy)
        except Refusal as refusal:
            return str(refusal)
        if answer is None:
            copy.snapshot = copy.version
            vars(chat).update(vars(copy))
        return answer

    def _told(self, what: str, got: object) -> None:
        if isinstance(got, Effects):
            got = f"{got.status}{'' if got.changed else ', unchanged'}"
        self.trace.append(f"{len(self.trace):3} {what} → {got}")

    def _sql(self, statement: str, **parameters: object) -> None:
        with self.engine.begin() as connection:
            connection.execute(text(statement), parameters)


def _versions(got: Any) -> tuple[int, int, int] | None:
    if not isinstance(got, Effects):
        return None
    return got.snapshot_version, got.history_version, got.queue_version


def _model_versions(chat: Chat) -> tuple[int, int]:
    return chat.history_version, chat.queue_version
