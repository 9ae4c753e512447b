"""A chat under this worker's lease: what was produced so far, and the fenced way to write it.

Every write is one transition in one transaction, tried again if the database went away meanwhile.
That is safe: if the first try did commit, the second finds the fence gone and is `Stale`. If the
chat is then still ours, because the first one kept the lease, the heartbeat finds a lease without a
step and hands the chat back.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

from models import machine, snapshot, steps
from models.claims import Claim
from models.engine import reading, transaction
from models.machine.cas_store import perform
from rejoinder.core.cancellation import Cancellation
from rejoinder.core.decide import Entry
from rejoinder.core.effects import Dispatch, Effects, Fence
from rejoinder.core.errors import Stale, StopRequested
from rejoinder.core.messages import Failure, NewMessage, Role, Usage
from rejoinder.core.parts import ToolResult
from rejoinder.tools.toolbox import Toolbox
from tasks import agents, local_dispatch
from tasks.db_retry import is_transient, retrying_in_step
from tasks.dispatch import publish
from tasks.histories import longer
from tasks.runtime import Runtime
from tasks.timeline import Timeline

log = logging.getLogger(__name__)


class Held:
    """A claimed chat."""

    def __init__(
        self,
        runtime: Runtime,
        claim: Claim,
        cancellation: Cancellation,
        timeline: Timeline,
        request: Any = None,
    ) -> None:
        """Begin with nothing produced. `request` is Celery's, of the step's task."""
        self.runtime = runtime
        self._request = request
        self.timeline = timeline
        self.usage: Usage | None = None
        """What the model calls of this step took."""
        self.fence = claim.fence
        self._known = claim.known
        known, around = claim.known, claim.around
        self._seen = (known.chat, around) if known is not None and around is not None else None
        self._history: Sequence[Entry] | None = None
        self._answers = 0
        """How many model calls of this step stand in history."""
        self.step_id = claim.step_id
        self.turn_id: UUID = claim.turn_id
        self.attempt = claim.attempt
        self.claims_since_progress = claim.claims_since_progress
        self.cancellation = cancellation
        self.partial: NewMessage | None = None
        self.results: list[ToolResult] = []
        self.untouched: tuple[str, ...] = ()
        self._tools: Toolbox | None = None
        self.left = False
        """The step has begun to end: what comes now comes too late."""

    @property
    def chat_id(self) -> UUID:
        """The chat."""
        return self.fence.chat_id

    def tools(self, loaded: snapshot.Loaded) -> Toolbox:
        """What this chat's model can call."""
        if self._tools is None:
            built_in = agents.tools_for(loaded, self.runtime.settings)
            self._tools = Toolbox(self.runtime.tools, loaded.options, built_in)
        return self._tools

    @retrying_in_step
    def load(self) -> snapshot.Loaded:
        """Read what the step needs, as far as neither the claim nor the step before has told."""
        with self.timeline.measure("load"):
            history = self.runtime.histories.take(self.chat_id, self.fence.history_version)
            loaded = self._read(history)
            self._history = loaded.snapshot.history
            return loaded

    def _read(self, history: Sequence[Entry] | None) -> snapshot.Loaded:
        if self._seen is not None and history is not None and snapshot.is_all(self._seen):
            return snapshot.put_together(self.chat_id, self.turn_id, self._seen, history)
        with reading(self.runtime.engine) as tx:
            return snapshot.load(tx, self.chat_id, self.turn_id, self._seen, history)

    @retrying_in_step
    def write(
        self, transition: Callable[..., Effects], *args: object, **options: object
    ) -> Effects:
        """Run one fenced transition, and publish what follows from it."""

        def took(effects: Effects) -> steps.Took | None:
            goes_on = effects.fence is not None and effects.dispatch is None
            return None if goes_on else self._took(transition.__name__)

        with self.timeline.measure("write"):
            engine, fence = self.runtime.engine, self.fence
            done = perform(engine, self._known, transition, fence, *args, took=took, **options)
        effects, self._known = done.effects, done.known
        self._remember(effects, done.messages)
        claim = None
        if effects.fence is not None and effects.dispatch is not None:
            claim = self._claimed(effects.fence, effects.dispatch, effects.snapshot_version)
        elif effects.fence is not None:
            self.fence = effects.fence
        publish(self.runtime, effects, by=self._request, claim=claim)
        return effects

    def commit(self, **options: object) -> None:
        """There is more to do: for this very process, if it has a place for the next step."""
        stay = self._known is not None and local_dispatch.can_take(self._request)
        self.write(machine.commit, stay=stay, **options)

    def _claimed(self, fence: Fence, to: Dispatch, version: int) -> Claim:
        """The claim of the next step: it was made with the commit.

        This step has no more to do with the chat: its own fence is gone.
        """
        known, around, self._known = self._known, None, None
        if known is not None and known.chat["parent_id"] is None and self._seen is not None:
            around = replace(  # its budget is its own: it has not changed either
                self._seen[1],
                now=known.now,
                steps=self._seen[1].steps + self._answers,
                has_calls=known.calls is None or bool(known.calls),
            )
        return Claim(
            fence,
            self.turn_id,
            known.chat["attempt"] if known else 0,
            version,
            0,
            to.step_id,
            known=known,
            around=around,
            kept=True,
        )

    def _remember(
        self, effects: Effects, messages: Sequence[tuple[int, NewMessage]] | None
    ) -> None:
        """Keep history for the next step, if the turn goes on and all that was added is known."""
        if messages is None or self._history is None:
            self._history = None
        else:
            self._history = longer(self._history, messages)
            self._answers += sum(message.role is Role.ASSISTANT for _, message in messages)
        if self._history is not None and effects.dispatch is not None:
            self.runtime.histories.keep(self.chat_id, effects.history_version, self._history)

    def _took(self, outcome: str) -> steps.Took:
        line, usage = self.timeline, self.usage
        return steps.Took(
            turn_id=self.turn_id,
            task_id=self.step_id,
            worker=self.runtime.name,
            attempt=self.attempt,
            outcome=outcome,
            seconds=line.seconds,
            claim_ms=line.ms("claim") or 0.0,
            load_ms=line.ms("load"),
            model_ms=line.ms("model"),
            tools_ms=line.ms("tools"),
            write_ms=line.ms("write"),
            input_tokens=usage.prompt_tokens if usage else None,
            output_tokens=usage.output_tokens if usage else None,
        )

    @contextmanager
    def away(self, what: str) -> Iterator[None]:
        """Wait for somebody, a model or a tool, and let others work meanwhile; `what` is timed."""
        with self.runtime.turnstile.outside(), self.timeline.measure(what):
            yield

    def finish_interrupt(self) -> None:
        """Save what was produced, and give way; if it cannot be stored, without it."""
        produced = {"partial": self.partial, **self._of_tools}
        if not self._stored(machine.finish_interrupt, **produced):
            self.write(machine.finish_interrupt)

    def fail(self, failure: Failure) -> None:
        """End the chat in `error`; if what was produced cannot be stored, without it."""
        if not self._stored(machine.fail, failure, **self._of_tools):
            self.give_up(failure)

    @property
    def _of_tools(self) -> dict[str, Any]:
        return {"results": [*self.results], "untouched": self.untouched}

    def _stored(
        self, transition: Callable[..., Effects], *args: object, **produced: object
    ) -> bool:
        """Write it; False if this can never be stored."""
        try:
            self.write(transition, *args, **produced)
        except (Stale, StopRequested):
            raise
        except Exception as error:
            if is_transient(error):
                raise
            log.exception("Chat %s: what it produced cannot be stored", self.chat_id)
            return False
        return True

    @retrying_in_step
    def give_up(self, failure: Failure) -> None:
        """End the chat in `error` by the smallest statement."""
        with transaction(self.runtime.engine) as tx:
            effects = machine.give_up(tx, self.fence, failure)
        publish(self.runtime, effects)

    def leave(self) -> None:
        """Have the heartbeat hand the chat back, with all there is, once the database is back."""
        produced = {"partial": self.partial, **self._of_tools}
        self.runtime.unwritten.update({self.fence.lease_id: (self.fence, produced)})

    def tell(self, kind: str, **data: object) -> None:
        """Tell the chat's readers something that is not durable."""
        self.runtime.events.add(self.chat_id, kind, data)  # type: ignore[arg-type]
