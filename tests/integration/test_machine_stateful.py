"""Random histories: apps, workers, sweepers and operators act on a few chats, and a model predicts.

Each step runs one transition on real Postgres and the same one in `chat_model.py`, then compares
the answer, every row, and the rules of `invariants.py`. Old fences are kept and used on purpose.
The same examples every time, unless REJOINDER_LONG=1 asks for many new ones.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from models import machine, trees
from models.machine.store import store_of
from rejoinder.core.messages import Compaction, NewMessage, Role, Visibility, WhenBusy
from rejoinder.core.model import StopReason
from rejoinder.core.parts import ToolResult
from tests.chats import BOOM, words
from tests.integration.chat_model import SAME
from tests.integration.chat_state import Ask
from tests.integration.histories import CALLS, WHICH, Apps, Calls, parts
from tests.integration.side_by_side import MODELS, Plain

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from tests.integration.chat_model import Chat

LONG = os.environ.get("REJOINDER_LONG") == "1"


class Histories(Apps):
    """Everything that can happen to a few chats, in any order."""

    # Workers.

    @rule(which=WHICH, worker=WHICH)
    def claim(self, which: int, worker: int) -> None:
        claimant = self._worker(worker)
        if worker % 4 == 0:
            self.both.silence(claimant, long=False)
        self.both.claim(self._pick(which, "pending"), claimant)

    @rule(which=WHICH, fence=WHICH, calls=CALLS)
    def record(self, which: int, fence: int, calls: Calls) -> None:
        chat = self._running(which)
        self._record(chat, self._fence(chat, fence), calls)

    def _asked(self, says: Calls | None) -> Plain:
        return Plain() if says is None else self.both.asked(says).plain

    @rule(which=WHICH, fence=WHICH, calls=CALLS, chosen=WHICH)
    def start_tools(self, which: int, fence: int, calls: Calls, chosen: int) -> None:
        chat = self._running(which, calls)
        held = self._fence(chat, fence)
        ids = [call_id for call_id, _ in self._results(chat, chosen)]
        self.both.act(
            f"start {ids}",
            chat,
            lambda tx: machine.start_tools(tx, held, ids),
            lambda model, _: model.start_tools(held, ids),
        )

    @rule(which=WHICH, fence=WHICH, calls=CALLS, results=WHICH, says=st.none() | CALLS)
    def commit(
        self, which: int, fence: int, calls: Calls, results: int, says: Calls | None
    ) -> None:
        chat = self._running(which, calls)
        held, given = self._fence(chat, fence), self._results(chat, results)
        asked = self._asked(says)
        self.both.act(
            f"commit {given} {asked.model}",
            chat,
            lambda tx: machine.commit(
                tx,
                held,
                results=parts(given),
                message=asked.message and replace(asked.message, stop_reason=StopReason.PAUSE),
                stay=results % 2 == 0,
            ),
            lambda model, ids: model.commit(held, given, asked.model, ids.kept),
        )

    @rule(which=WHICH, fence=WHICH)
    def store_compaction(self, which: int, fence: int) -> None:
        chat, said = self._running(which), self.both.word()
        held = self._fence(chat, fence)
        summary = NewMessage(Role.USER, words(said), Visibility.MODEL, compressed=True)
        marker = NewMessage(Role.ASSISTANT, words("compacted"), Visibility.USER, compressed=True)
        self.both.act(
            "store_compaction",
            chat,
            lambda tx: machine.store_compaction(tx, held, Compaction(summary, marker)),
            lambda model, _: model.store_compaction(held, said, "compacted"),
        )

    @rule(which=WHICH, fence=WHICH, says=st.none() | CALLS)
    def finish_turn(self, which: int, fence: int, says: Calls | None) -> None:
        chat = self._running(which)
        held = self._fence(chat, fence)
        # Mostly without calls: with them, it is refused.
        asked = self._asked(says and (says if which % 5 == 0 else []))
        self.both.act(
            f"finish_turn {asked.model}",
            chat,
            lambda tx: machine.finish_turn(tx, held, message=asked.message),
            lambda model, _: model.finish_turn(held, asked.model),
        )

    @rule(which=WHICH, fence=WHICH, calls=CALLS, results=WHICH)
    def retry_later(self, which: int, fence: int, calls: Calls, results: int) -> None:
        chat = self._running(which, calls)
        held, given = self._fence(chat, fence), self._results(chat, results)
        self.both.act(
            f"retry_later {given}",
            chat,
            lambda tx: machine.retry_later(
                tx, held, delay_seconds=3600, retry_state={"kind": "busy"}, results=parts(given)
            ),
            lambda model, _: model.retry_later(held, given),
        )

    @rule(which=WHICH, fence=WHICH, calls=CALLS, results=WHICH)
    def require_action(self, which: int, fence: int, calls: Calls, results: int) -> None:
        chat = self._running(which, [*calls, Ask("client")])
        self._park(chat, self._fence(chat, fence), self._results(chat, results, "local"), "client")

    @rule(which=WHICH, fence=WHICH)
    def exceed_budget(self, which: int, fence: int) -> None:
        chat = self._running(which)
        held = self._fence(chat, fence)
        self.both.act(
            "exceed_budget",
            chat,
            lambda tx: machine.exceed_budget(
                tx,
                held,
                budget=trees.lock_budget(store_of(tx).session, chat.id),
                deadline_seconds=3600,
                spent={"tokens": 1000},
            ),
            lambda model, _: model.exceed_budget(held),
        )

    @rule(which=WHICH, fence=WHICH, calls=CALLS, results=WHICH)
    def sleep(self, which: int, fence: int, calls: Calls, results: int) -> None:
        chat = self._running(which, calls)
        given = self._results(chat, results, "local")
        self._park(chat, self._fence(chat, fence), given, "external")

    @rule(which=WHICH, fence=WHICH, calls=CALLS, says=st.none() | CALLS)
    def fail(self, which: int, fence: int, calls: Calls, says: Calls | None) -> None:
        chat = self._running(which, calls)
        held = self._fence(chat, fence)
        asked = self._asked(says)
        self.both.act(
            f"fail {asked.model}",
            chat,
            lambda tx: machine.fail(tx, held, BOOM, message=asked.message),
            lambda model, _: model.fail(held, asked.model),
        )

    @rule(which=WHICH, fence=WHICH, calls=CALLS, results=WHICH, says=st.none() | CALLS)
    def release(
        self, which: int, fence: int, calls: Calls, results: int, says: Calls | None
    ) -> None:
        chat = (self._running if which % 3 else self._interrupting)(which, calls)
        held, given = self._fence(chat, fence), self._results(chat, results)
        asked = self._asked(says)
        self.both.act(
            f"release {given} {asked.model}",
            chat,
            lambda tx: machine.release(tx, held, results=parts(given), partial=asked.message),
            lambda model, _: model.release(held, given, asked.model),
        )

    @rule(which=WHICH, fence=WHICH, calls=CALLS, results=WHICH, says=st.none() | CALLS)
    def finish_interrupt(
        self, which: int, fence: int, calls: Calls, results: int, says: Calls | None
    ) -> None:
        chat = self._interrupting(which, calls)
        held, given = self._fence(chat, fence), self._results(chat, results)
        asked = self._asked(says)
        self.both.act(
            f"finish_interrupt {given} {asked.model}",
            chat,
            lambda tx: machine.finish_interrupt(
                tx, held, results=parts(given), partial=asked.message
            ),
            lambda model, _: model.finish_interrupt(held, given, asked.model),
        )

    @rule(
        which=WHICH,
        calls=CALLS,
        times=st.integers(1, 3),
        model=st.sampled_from(MODELS),
        then=st.sampled_from(["commit", "release", "death", "nothing"]),
    )
    def steer(self, which: int, calls: Calls, times: int, model: str | None, then: str) -> None:
        """Messages for a turn that is under way, and mostly the end of its step."""
        chat = self._running(which, calls if which % 3 == 0 else [])
        for _ in range(times):
            self._send(chat, WhenBusy.STEER, model)
        held, given = self._fence(chat, 1), self._results(chat, 9)
        match then:
            case "commit" | "release":
                self.both.act(
                    f"{then} {given}",
                    chat,
                    lambda tx: getattr(machine, then)(tx, held, results=parts(given)),
                    lambda model, _: getattr(model, then)(held, given, None),
                )
            case "death" if chat.worker:
                self.both.silence(chat.worker, long=False)
                self.both.sweep()

    # Those who watch.

    @rule(which=WHICH, calls=CALLS, results=WHICH)
    def wake(self, which: int, calls: Calls, results: int) -> None:
        chat = self._waits_outside(which, calls)
        answers = self._results(chat, results, "external")
        given = answers[0] if answers else None
        self.both.act(
            f"wake {given}",
            chat,
            lambda tx: machine.wake(tx, chat.id, ToolResult(*given) if given else None),
            lambda model, _: model.wake(given),
        )

    def _waits_outside(self, which: int, calls: Calls) -> Chat:
        """A chat with a call to another app, asleep, not yet, or no longer."""
        match which % 4:
            case 0 | 1:
                return self._parked(which, "external", calls)
            case 2:
                return self._running(which, [*calls, Ask("external")])
            case _:
                return self._pick(which, "error", "pending", "interrupting")

    @rule(which=WHICH, calls=CALLS)
    def expire(self, which: int, calls: Calls) -> None:
        chat = self._parked(which, "client" if which % 2 else "external", calls)
        if which % 3:
            self.both.time_passes(chat)
        self.both.act(
            "expire",
            chat,
            lambda tx: machine.expire(tx, chat.id),
            lambda model, _: model.expire(),
        )

    @rule(which=WHICH, fence=WHICH, calls=CALLS, says=st.none() | CALLS)
    def recover(self, which: int, fence: int, calls: Calls, says: Calls | None) -> None:
        chat = (self._running if which % 3 else self._interrupting)(which, calls)
        lease_id = self._fence(chat, fence).lease_id
        asked = self._asked(says)
        self.both.act(
            f"recover {asked.model}",
            chat,
            lambda tx: machine.recover(tx, chat.id, lease_id, partial=asked.message),
            lambda model, _: model.recover(lease_id, asked.model),
        )

    @rule(which=WHICH, calls=CALLS, times=st.integers(1, 3))
    def crash(self, which: int, calls: Calls, times: int) -> None:
        """A worker dies, or several, one after the other, and the sweeper finds out."""
        chat = self._running(which, calls)
        for _ in range(times):
            if chat.status == "pending" and not chat.delayed:
                self.both.claim(chat, self._worker(1))
            if chat.worker:
                self.both.silence(chat.worker, long=which % 2 == 0)
            self.both.sweep()

    @rule(which=WHICH)
    def reconcile(self, which: int) -> None:
        chat = self._pick(which)
        self.both.act(
            "reconcile", chat, lambda tx: machine.reconcile(tx, chat.id), lambda _model, _: SAME
        )

    @rule()
    def sweep(self) -> None:
        self.both.sweep()

    @rule(which=WHICH)
    def time_passes(self, which: int) -> None:
        self.both.time_passes(self._pick(which, "requires_action", "sleeping", "pending"))

    @rule(which=WHICH, what=st.sampled_from(["beats", "dies", "rots", "retires", "returns"]))
    def worker(self, which: int, what: str) -> None:
        worker = self._worker(which)
        match what:
            case "beats":
                self.both.heartbeat(worker)
            case "dies" | "rots":
                self.both.silence(worker, long=what == "rots")
            case "retires":
                self.both.retire(worker)
            case _:
                self.both.register(worker)


# Hypothesis spends all but the first ten examples of a run on variations of earlier ones, which
# find little here: so, several short runs, each from a seed of its own.
@pytest.mark.parametrize("first", [None] if LONG else range(8))
@pytest.mark.timeout(0 if LONG else 120)
def test_random_histories_are_as_the_model_predicts(engine: Engine, first: int | None) -> None:
    class Here(Histories):
        pass

    Here.engine = engine
    run_state_machine_as_test(
        Here if first is None else seed(first)(Here),
        settings=settings(
            max_examples=2000 if LONG else 10,
            stateful_step_count=60 if LONG else 25,
            deadline=None,
            database=None,
            # A failure comes with its history, step by step; to make it shorter takes minutes.
            phases=(Phase.generate, Phase.shrink) if LONG else (Phase.generate,),
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
