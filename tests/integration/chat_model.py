"""A chat as plain Python: what the design says that each transition does to it.

Written from the design, without the table or any code of the machine, so that the two can disagree.
A method either raises `Refusal` (then nothing happened), returns `SAME` (accepted, nothing written)
or changes the chat. Ids that the database chooses (turns, leases, queue entries) come in as
arguments; everything else is predicted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.integration.chat_state import PARKED, REST, Message, Refusal, State

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from rejoinder.core.effects import Fence

SAME = "same"


class Chat(State):
    """One chat, and everything that can happen to it."""

    # What apps ask for.

    def send(self, text: str, when: str, turn: UUID, queued: int | None) -> None:
        self._not_archived()
        if self.status in REST:
            self._close("superseded")
            if self.queue:
                self._enqueue(text, turn, queued)
                self._promote()
            else:
                self._say(text, turn)
            self._to("pending")
            return
        if when == "reject":
            raise Refusal("Rejected")
        self._enqueue(text, turn, queued)
        if when == "interrupt":
            self._stop("superseded")

    def edit(self, index: int | None, text: str, turn: UUID) -> None:
        self._not_archived()
        if index is None or self.history[index].role != "user" or self.history[index].compressed:
            raise Refusal("Rejected")
        if self.lease:
            self.hints.append("lease_lost")
        self._close("superseded", into_history=False)
        del self.history[index:]
        for message in self.queue:
            self._end(message.turn, "cancelled")
        if self.queue:
            self.queue, self.queue_version = [], self.version
        if self.turn:
            self._end(self.turn, "cancelled")
        self._say(text, turn)
        self._to("pending")

    def interrupt(self) -> str | None:
        if self.status in (*REST, "interrupting"):
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
        if given != sorted(call.id for call in self._unanswered("client")):
            raise Refusal("Rejected")
        self._answer(results)
        self._settle()
        self._to("pending")

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
            call.state = "started"

    def commit(
        self, fence: Fence, results: Sequence[tuple[str, str]], message: Message | None
    ) -> None:
        self._owned(fence)
        self._hand_back(results)
        if message:
            self._record(message)
        self.crashes = 0
        self._to("pending")

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
            self._to("pending")

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
        if not self._unanswered("client"):
            raise Refusal("Rejected")
        self.crashes = 0
        self._to("requires_action")

    def sleep(self, fence: Fence, results: Sequence[tuple[str, str]]) -> None:
        self._owned(fence)
        self._hand_back(results)
        self.crashes = 0
        woken, self.woken = self.woken, False
        self._to("pending" if woken or not self._unanswered("external") else "sleeping")

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
            self._to("pending")

    def finish_interrupt(
        self, fence: Fence, results: Sequence[tuple[str, str]], partial: Message | None
    ) -> None:
        self._owned(fence, stopping=True)
        if self.status == "running":
            raise Refusal("Stale")
        self._finish_stopped(results, partial)

    # What others do for those who cannot.

    def wake(self, result: tuple[str, str] | None) -> str | None:
        asked = {call.id for call in self._unanswered("external")}
        if self.status == "waiting":
            return SAME
        if result and result[0] in asked:
            self._answer([result])
        elif result or self.status == "error":
            return SAME
        if self.status not in ("running", "interrupting"):
            self._settle()
        if self.status == "sleeping":
            if result is None or asked == {result[0]}:
                self._to("pending")
        elif result is None:
            self.woken = True
        return None

    def expire(self) -> None:
        if self.status not in PARKED or not self.expired:
            raise Refusal("Stale")
        self._close("timeout")
        self._to("pending")

    def recover(self, lease: UUID, partial: Message | None = None) -> None:
        if self.lease != lease:
            raise Refusal("Stale")
        if self.status == "interrupting":
            self._finish_stopped((), partial)
            return
        self._hand_back(())
        self.crashes += 1
        if self.crashes < 3:
            self._to("pending")
        else:
            self._end(self.turn, "failed")
            self._to("error", "worker_lost")
