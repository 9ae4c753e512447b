"""What apps do in random histories, and how a random number becomes a choice that matters.

`SideBySide` does each thing to the database and to the model. Four choices of five are sensible (a
chat in which the transition can happen, led there if need be; the newest fence; results that fit),
the fifth is any.
The rest of the cast, workers and sweepers, is in `test_machine_stateful.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from sqlalchemy import text

from models import machine
from rejoinder.core.effects import Fence
from rejoinder.core.messages import TitleSource, WhenBusy
from rejoinder.core.parts import ToolResult
from tests.chats import words
from tests.integration.chat_state import LATER, SOON, Ask, Queued
from tests.integration.side_by_side import MODELS, SideBySide

if TYPE_CHECKING:
    from uuid import UUID

    from sqlalchemy import Engine

    from tests.integration.chat_model import Chat

MOST_CHATS = 5
Results = list[tuple[str, str]]

WHICH = st.integers(0, 99)
"""Which chat, fence, message: the pickers below make a choice of it."""
CALLS = st.lists(
    st.builds(
        Ask,
        kind=st.sampled_from(["local", "client", "external", "children"]),
        once=st.booleans(),
        started=st.booleans(),
        approval=st.sampled_from([False, False, True]),
        patience=st.sampled_from([SOON, SOON, LATER]),
        default=st.sampled_from([None, None, "approve", "content"]),
    ),
    max_size=3,
)
"""Tool calls, of all kinds."""
Calls = list[Ask]


def parts(results: Results) -> list[ToolResult]:
    """The machine's form of results."""
    return [ToolResult(call_id, content) for call_id, content in results]


class Apps(RuleBasedStateMachine):
    """A few chats, and what apps can do to them, in any order."""

    engine: Engine

    @initialize()
    def begin(self) -> None:
        self.both = SideBySide(self.engine)
        self.both.create("ann", None)

    @invariant()
    def rows_are_as_the_model_says(self) -> None:
        self.both.compare()

    def teardown(self) -> None:
        self.both.readers.shuffle()

    # Apps.

    @rule(which=WHICH, owner=st.sampled_from(["ann", "bob"]), key=st.sampled_from("abc----"))
    def create(self, which: int, owner: str, key: str) -> None:
        parent = self._pick(which) if which % 3 else None
        if len(self.both.chats) < MOST_CHATS:
            owner = parent.owner if parent and which % 5 else owner
            self.both.create(owner, parent, None if key == "-" else key)

    @rule(which=WHICH, when=st.sampled_from(WhenBusy), model=st.sampled_from(MODELS))
    def send(self, which: int, when: WhenBusy, model: str | None) -> None:
        self._send(self._pick(which), when, model)

    def _send(self, chat: Chat, when: WhenBusy, by: str | None = None) -> None:
        said = self.both.word()
        self.both.act(
            f"send {said!r} ({when})",
            chat,
            lambda tx: machine.send(tx, chat.id, words(said), when_busy=when, model=by),
            lambda model, ids: model.send(Queued(ids.queued, said, ids.turn, model=by), when),
        )

    @rule(which=WHICH, message=WHICH, model=st.sampled_from(MODELS))
    def edit(self, which: int, message: int, model: str | None) -> None:
        self._edit(self._pick(which), message, model)

    def _edit(self, chat: Chat, message: int, by: str | None = None) -> None:
        said = self.both.word()
        index, message_id = self._pick_message(chat, message)
        self.both.act(
            f"edit message {index} to {said!r}",
            chat,
            lambda tx: machine.edit(tx, chat.id, message_id, words(said), by),
            lambda model, ids: model.edit(index, said, ids.turn, by),
        )

    @rule(which=WHICH, turn=WHICH)
    def interrupt(self, which: int, turn: int) -> None:
        chat = self._pick(which, "running", "requires_action", "sleeping")
        turns = [*chat.joined] if turn % 3 and chat.joined else [*chat.turns]
        self._interrupt(chat, turns[turn // 2 % len(turns)] if turn % 2 else None)

    def _interrupt(self, chat: Chat, turn: UUID | None = None) -> None:
        self.both.act(
            f"interrupt {'a turn' if turn else ''}",
            chat,
            lambda tx: machine.interrupt(tx, chat.id, turn_id=turn),
            lambda model, _: model.interrupt(turn),
        )

    @rule(which=WHICH, message=WHICH)
    def promote_queued(self, which: int, message: int) -> None:
        chat, queued = self._pick_queued(which, message)
        self.both.act(
            f"promote {queued}",
            chat,
            lambda tx: machine.promote_queued(tx, chat.id, queued),
            lambda model, _: model.promote_queued(queued),
        )

    @rule(which=WHICH, message=WHICH)
    def delete_queued(self, which: int, message: int) -> None:
        chat, queued = self._pick_queued(which, message)
        self.both.act(
            f"delete {queued}",
            chat,
            lambda tx: machine.delete_queued(tx, chat.id, queued),
            lambda model, _: model.delete_queued(queued),
        )

    @rule(which=WHICH, calls=CALLS, results=WHICH)
    def submit_results(self, which: int, calls: Calls, results: int) -> None:
        chat = self._parked(which, "client", calls)
        given = self._results(chat, results, "client")
        self.both.act(
            f"submit {given}",
            chat,
            lambda tx: machine.submit_results(tx, chat.id, parts(given)),
            lambda model, _: model.submit_results(given),
        )

    @rule(which=WHICH, calls=CALLS, chosen=WHICH, approved=st.booleans(), note=st.booleans())
    def approve(self, which: int, calls: Calls, chosen: int, *, approved: bool, note: bool) -> None:
        asks = [*calls, Ask("local" if which % 2 else "external", approval=True)]
        chat = self._parked(which, "client", asks)
        wanted = [c.id for c in chat.calls if c.approval == "wanted" and c.result is None]
        ids = None if chosen % 3 == 0 else wanted[: chosen % 4] if chosen % 5 else ["never asked"]
        reason = "fine" if note else None
        self.both.act(
            f"{'approve' if approved else 'deny'} {ids}",
            chat,
            lambda tx: machine.approve(tx, chat.id, ids, approved=approved, reason=reason),
            lambda model, _: model.approve(ids, reason, approved=approved),
        )

    @rule(which=WHICH, source=st.sampled_from(TitleSource))
    def set_title(self, which: int, source: TitleSource) -> None:
        chat, title = self._pick(which), self.both.word() if which % 7 else ""
        self.both.act(
            f"set_title {title!r} by {source}",
            chat,
            lambda tx: machine.set_title(tx, chat.id, title, source),
            lambda model, _: model.set_title(title, source),
        )

    @rule(which=WHICH, value=st.sampled_from([None, "a", "b"]))
    def set_labels(self, which: int, value: str | None) -> None:
        chat, labels = self._pick(which), {"xyz"[which % 3]: value}
        self.both.act(
            f"set_labels {labels}",
            chat,
            lambda tx: machine.set_labels(tx, chat.id, labels),
            lambda model, _: model.set_labels({**labels}),
        )

    @rule(which=WHICH, tokens=st.sampled_from([None, 10, 1000]))
    def set_budget(self, which: int, tokens: int | None) -> None:
        waiting = [chat for chat in self.both.chats.values() if chat.action == "budget"]
        chat = waiting[0] if which % 2 and waiting else self._pick(which)
        self.both.set_budget(self.both.chats[chat.root] if which % 5 else chat, tokens)

    @rule(which=WHICH)
    def request_compaction(self, which: int) -> None:
        chat = self._pick(which, "waiting", "error")
        self.both.act(
            "request_compaction",
            chat,
            lambda tx: machine.request_compaction(tx, chat.id),
            lambda model, ids: model.request_compaction(ids.turn),
        )

    @rule(which=WHICH)
    def retry(self, which: int) -> None:
        chat = self._pick(which, "waiting", "error")
        self.both.act(
            "retry",
            chat,
            lambda tx: machine.retry(tx, chat.id),
            lambda model, ids: model.retry(ids.turn),
        )

    @rule(which=WHICH)
    def archive(self, which: int) -> None:
        self.both.archive(self._pick(which, "waiting", "error"), archived=which % 3 > 0)

    # Ways to where it gets interesting.

    def _pending(self, which: int) -> Chat:
        """A chat that can be claimed, most often."""
        chat = self._pick(which, "pending")
        if chat.status != "pending":
            chat = self._pick(which, "waiting", "error")
            self._send(chat, WhenBusy.QUEUE)
        if chat.status != "pending":
            self._edit(chat, 1)
        if chat.delayed:
            self.both.time_passes(chat)
        return chat

    def _running(self, which: int, calls: Calls = []) -> Chat:  # noqa: B006  it is not changed
        """A chat that a worker is on, most often, with these calls open if there were none."""
        chat = self._pick(which, "running")
        if which % 5 == 0:
            return chat
        if chat.status != "running":
            chat = self._pending(which)
            self.both.claim(chat, self._worker(1))
        if calls and not chat.calls:
            self._record(chat, self._fence(chat, 1), calls)
        return chat

    def _parked(self, which: int, kind: str, calls: Calls) -> Chat:
        """A chat that waits for an answer to a call of this kind, most often."""
        status = "requires_action" if kind == "client" else "sleeping"
        chat = self._pick(which, status)
        if which % 5 and chat.status != status:
            chat = self._running(which, [*calls, Ask(kind)])
            self._park(chat, self._fence(chat, 1), [], kind)
        return chat

    def _interrupting(self, which: int, calls: Calls) -> Chat:
        """A chat that is being stopped, most often."""
        chat = self._pick(which, "interrupting")
        if which % 5 and chat.status != "interrupting":
            chat = self._running(which, calls)
            self._interrupt(chat)
        return chat

    def _record(self, chat: Chat, held: Fence, calls: Calls) -> None:
        asked = self.both.asked(calls)
        self.both.act(
            f"record {asked.model}",
            chat,
            lambda tx: machine.record(
                tx, held, asked.message, plans=asked.plans, start=asked.start
            ),
            lambda model, _: model.record(held, asked.model),
        )

    def _park(self, chat: Chat, held: Fence, given: Results, kind: str) -> None:
        park = machine.require_action if kind == "client" else machine.sleep
        self.both.act(
            f"{park.__name__} {given}",
            chat,
            lambda tx: park(tx, held, deadline_seconds=3600, results=parts(given)),
            lambda model, _: (model.require_action if kind == "client" else model.sleep)(
                held, given
            ),
        )

    # Choices.

    def _pick(self, which: int, *statuses: str) -> Chat:
        """A chat, most often one in such a status."""
        chats = [*self.both.chats.values()]
        fitting = [chat for chat in chats if chat.status in statuses]
        if which % 5 and fitting:
            chats = fitting
        return chats[which // 5 % len(chats)]

    def _fence(self, chat: Chat, which: int) -> Fence:
        """What a worker may hold: the newest fence, an old one, or one that never was."""
        fences = self.both.fences[chat.id]
        if not fences or which == 0:
            return Fence(chat.id, uuid4(), chat.history_version)
        return fences[-1] if which % 5 else fences[which // 5 % len(fences)]

    def _worker(self, which: int) -> UUID:
        """A worker, most often a live one."""
        workers = [*self.both.workers]
        alive = [worker for worker in workers if self.both.workers[worker] == "alive"]
        if not alive:
            self.both.register(workers[0])
        elif which % 5:
            workers = alive
        return workers[which // 5 % len(workers)]

    def _results(self, chat: Chat, which: int, *kinds: str) -> Results:
        """Results for calls of these kinds (any, by default): most often for all, or for some."""
        self.both.count += 1
        fitting = [c.id for c in chat.calls if not c.result and (not kinds or c.kind in kinds)]
        match which % 10:
            case 0:
                fitting = [*fitting, "never asked"]
            case 1:
                fitting = [call.id for call in chat.calls]
            case 2:
                fitting = [*fitting, *fitting[:1]]
            case 3 | 4:
                fitting = fitting[: which // 10 % (len(fitting) + 1)]
            case 5:
                fitting = []
        return [(call_id, f"found {self.both.count}") for call_id in fitting]

    def _pick_message(self, chat: Chat, which: int) -> tuple[int | None, int]:
        """A message of this chat (its place and its id), most often a user's; or of another."""
        with self.both.engine.connect() as connection:
            ids = connection.scalars(
                text(
                    "SELECT id FROM rejoinder.messages"
                    " WHERE chat_id = :id AND NOT deleted ORDER BY id"
                ),
                {"id": chat.id},
            ).all()
        if which == 0:
            return None, 10_000
        places = [*range(len(ids))]
        if which % 5:
            places = [n for n in places if chat.history[n].role == "user"]
        place = places[which // 5 % len(places)]
        return place, ids[place]

    def _pick_queued(self, which: int, message: int) -> tuple[Chat, int]:
        """A chat and one of its queued messages, most often."""
        chats = [chat for chat in self.both.chats.values() if chat.queue]
        if which % 5 and not chats:
            chats = [self._running(which)]
            for _ in range(1 + which % 3):
                self._send(chats[0], WhenBusy.QUEUE)
            chats = [chat for chat in chats if chat.queue]
        if which % 5 == 0 or not chats:
            return self._pick(which), message
        chat = chats[which // 5 % len(chats)]
        ids = [queued.id or 0 for queued in chat.queue]
        return chat, ids[message % len(ids)] if message else 10_000
