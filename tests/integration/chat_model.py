"""A chat as plain Python: what the design says that each transition does to it.

Written from the design, without the table or any code of the machine, so that the two can disagree.
A method either raises `Refusal` (then nothing happened), returns `SAME` (accepted, nothing written)
or changes the chat. Ids that the database chooses (turns, leases, queue entries) come in as
arguments; everything else is predicted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.integration.chat_state import PARKED, REST, SOON, Message, Queued, Refusal, State

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from rejoinder.core.effects import Fence

SAME = "same"


class Chat(State):
    """One chat, and everything that can happen to it."""

    # What apps ask for.

    def send(self, message: Queued, when: str) -> None:
        self._not_archived()
        if self.status in REST:
            self._close("superseded")
            if self.queue:
                self._enqueue(message)
                self._promote()
            else:
                self._say(message.text, message.turn, message.model)
            self._to("pending")
            return
        if when == "reject":
            raise Refusal("Rejected")
        self._enqueue(replace(message, steer=when == "steer"))
        if when == "interrupt":
            self._stop("superseded")
        elif when == "steer" and self.status == "pending" and self._join():
            self._to("pending")

    def edit(self, index: int | None, text: str, turn: UUID, model: str | None) -> None:
        self._not_archived()
        if index is None or self.history[index].role != "user" or self.history[index].compressed:
            raise Refusal("Rejected")
        if self.lease:
            self.hints.append("lease_lost")
        self._close("superseded", into_history=False)
        model = model or self.history[index].model
        del self.history[index:]
        for message in self.queue:
            self._end(message.turn, "cancelled")
        if self.queue:
            self.queue, self.queue_version = [], self.version
        if self.turn:
            self._end(self.turn, "cancelled")
        self._say(text, turn, model)
        self._to("pending")

    def interrupt(self, turn: UUID | None) -> str | None:
        if self.status in (*REST, "interrupting"):
            return SAME
        if turn is not None and self.turn not in (turn, self.joined.get(turn)):
            return SAME
        self._stop("interrupted")
        return None

    def promote_queued(self, queued: int) -> None:
        self._not_archived()
        message = self._queued(queued)
        if self.queue[0] is not message:
            self.queue.remove(message)
            self.queue.insert(0, message)
            self.queue_version = self.version
        if self.status == "error":
            self._close("superseded")
            self._rest_or_next()
        else:
            self._stop("superseded")

    def delete_queued(self, queued: int) -> None:
        self._not_archived()
        message = self._queued(queued)
        self.queue.remove(message)
        self.queue_version = self.version
        self._end(message.turn, "cancelled")

    def submit_results(self, results: Sequence[tuple[str, str]]) -> None:
        if self.status != "requires_action":
            raise Refusal("Rejected")
        given = sorted(call_id for call_id, _ in results)
        wanted = [call for call in self._unanswered("client") if call.approval != "wanted"]
        if given != sorted(call.id for call in wanted):
            raise Refusal("Rejected")
        self._answer(results)
        self._acted()

    def approve(self, call_ids: Sequence[str] | None, note: str | None, *, approved: bool) -> None:
        if self.status != "requires_action":
            raise Refusal("Rejected")
        wanted = {call.id for call in self._unanswered() if call.approval == "wanted"}
        chosen = wanted if call_ids is None else set(call_ids)
        if not chosen or not chosen <= wanted:
            raise Refusal("Rejected")
        for call in self._named([*chosen]):
            self._decide(call, approved=approved, note=note)
        self._acted()

    def set_title(self, title: str, source: str) -> str | None:
        if not title:
            raise Refusal("Rejected")
        if source == "model" and self.title_source != "words":
            return SAME
        self.title, self.title_source = title, source
        return None

    def set_labels(self, labels: dict[str, str | None]) -> str | None:
        merged = {**self.labels, **labels}
        kept = {name: value for name, value in merged.items() if value is not None}
        if kept == self.labels:
            return SAME
        self.labels = kept
        return None

    def set_budget(self, tokens: int | None) -> None:
        """What its tree may use; if it waits for more, it goes on."""
        if self.parent is None:
            self.budget = tokens
        if self.action == "budget":
            self._go_on()

    def request_compaction(self, turn: UUID) -> None:
        self._at_rest()
        self._close("superseded")
        self._open(turn, "compaction")
        self._to("pending")

    def retry(self, turn: UUID) -> None:
        self._at_rest()
        self._open(turn, "retry")
        self._to("pending")

    # What the owner does.

    def claim(self, lease: UUID, worker: UUID) -> None:
        self.lease, self.worker = lease, worker
        self._to("running")

    def record(self, fence: Fence, message: Message) -> None:
        self._owned(fence)
        self._record(message)

    def start_tools(self, fence: Fence, call_ids: Sequence[str]) -> None:
        self._owned(fence)
        for call in self._named(call_ids):
            if call.state not in ("requested", "started"):
                raise Refusal("Rejected")
            if call.state == "requested":
                if call.approval == "wanted":
                    raise Refusal("Rejected")
                self.sends += [call.id] if call.kind == "external" else []
            call.state = "started"

    def commit(
        self,
        fence: Fence,
        results: Sequence[tuple[str, str]],
        message: Message | None,
        kept: UUID | None = None,
    ) -> None:
        self._owned(fence)
        self._hand_back(results)
        if message:
            self._record(message, paused=True)
        self.crashes = 0
        if kept and not self.queue:
            self.lease = kept
        else:
            self._go_on()

    def store_compaction(self, fence: Fence, summary: str, marker: str) -> None:
        self._owned(fence)
        if self.calls:
            raise Refusal("Rejected")
        self._append("user", summary, compressed=True)
        self._append("assistant", marker, compressed=True)
        self.crashes = 0
        if self.turn_kind == "compaction":
            self._end(self.turn, "finished")
            self._rest_or_next()
        else:
            self._go_on()

    def finish_turn(self, fence: Fence, message: Message | None) -> None:
        self._owned(fence)
        if self.calls or (message and message[1]):
            raise Refusal("Rejected")
        if message:
            self._record(message)
        self.crashes = 0
        self._end(self.turn, "finished", self._last_answer())
        self._rest_or_next()

    def retry_later(self, fence: Fence, results: Sequence[tuple[str, str]]) -> None:
        self._owned(fence)
        self._hand_back(results)
        self.attempt += 1
        self._to("pending")
        self.delayed = True

    def require_action(self, fence: Fence, results: Sequence[tuple[str, str]]) -> None:
        self._owned(fence)
        self._hand_back(results)
        if not self._asking():
            raise Refusal("Rejected")
        self.crashes = 0
        self._park("requires_action", self._asking(), "calls")

    def exceed_budget(self, fence: Fence) -> None:
        self._owned(fence)
        if self.calls:
            raise Refusal("Rejected")
        self.crashes = 0
        self._to("requires_action")
        self.deadline, self.action = SOON, "budget"

    def sleep(self, fence: Fence, results: Sequence[tuple[str, str]]) -> None:
        self._owned(fence)
        self._hand_back(results)
        self.crashes = 0
        woken, self.woken = self.woken, False
        if woken or not self._elsewhere():
            self._go_on()
        else:
            self._park("sleeping", self._elsewhere())

    def fail(self, fence: Fence, message: Message | None) -> None:
        self._owned(fence)
        if message:
            self._record(message)
        self._hand_back(())
        self._end(self.turn, "failed")
        self._to("error", "generic")

    def release(
        self, fence: Fence, results: Sequence[tuple[str, str]], partial: Message | None
    ) -> None:
        self._owned(fence, stopping=True)
        if self.status == "interrupting":
            self._finish_stopped(results, partial)
        else:
            self._hand_back(results)
            self._go_on()

    def finish_interrupt(
        self, fence: Fence, results: Sequence[tuple[str, str]], partial: Message | None
    ) -> None:
        self._owned(fence, stopping=True)
        if self.status == "running":
            raise Refusal("Stale")
        self._finish_stopped(results, partial)

    # What others do for those who cannot.

    def wake(self, result: tuple[str, str] | None) -> str | None:
        asked = {call.id for call in self._elsewhere()}
        tasks = {call.id for call in self._elsewhere() if call.kind == "external"}
        if self.status == "waiting":
            return SAME
        if result and result[0] in tasks:
            self._answer([result])
        elif result or self.status == "error":
            return SAME
        if self.status not in ("running", "interrupting"):
            self._settle()
        if self.status == "pending":
            self._join()
        if self.status == "sleeping":
            if result is None or asked == {result[0]}:
                self._go_on()
        elif result is None:
            self.woken = True
        return None

    def expire(self) -> None:
        if self.status not in PARKED or not self.expired:
            raise Refusal("Stale")
        if self.action == "budget":
            self._end(self.turn, "failed")
            self._to("error", "budget")
            return
        late = [call for call in self._unanswered() if call.late]
        looks = any(call.kind == "children" and not call.asks for call in late)
        for call in late:
            self._overdue(call)
        self._settle()
        left = self._asking() if self.action else self._elsewhere()
        if not looks and any(call.deadline is not None for call in left):
            self._stay(left)
        else:
            self._go_on()

    def recover(self, lease: UUID, partial: Message | None = None) -> None:
        if self.lease != lease:
            raise Refusal("Stale")
        if self.status == "interrupting":
            self._finish_stopped((), partial)
            return
        self._hand_back(())
        self.crashes += 1
        if self.crashes < 3:
            self._go_on()
        else:
            self._end(self.turn, "failed")
            self._to("error", "worker_lost")
