"""The paths that every step, reader and sweep takes, as functions to explain and to measure."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from uuid import UUID

from sqlalchemy import Engine

from models import claims, machine, outside, trees
from models.engine import transaction
from models.history import prompt_history
from models.machine.cas_store import KnownRow, perform
from models.sweep import sweep
from rejoinder.core.effects import Effects, Fence
from rejoinder.core.messages import NewMessage, Role
from rejoinder.core.parts import Text, ToolCall, ToolResult
from scripts.big_tables import Filled

DEAD_AFTER = timedelta(seconds=15)


def said(text: str, *calls: ToolCall) -> NewMessage:
    """Build an assistant's message."""
    return NewMessage(Role.ASSISTANT, (Text(text), *calls))


def hot_paths(  # noqa: C901  # a list of small ones
    engine: Engine, filled: Filled, worker_id: UUID
) -> Mapping[str, Callable[[], object]]:
    """By name, in the order in which they have to run: each leaves the chat for the next."""
    held: dict[str, tuple[Fence, KnownRow | None]] = {}

    def claim() -> None:
        got = claims.claim(engine, filled.pending, worker_id, dead_after=DEAD_AFTER)
        if got is None:
            raise RuntimeError("the chat could not be claimed")
        held["chat"] = got.fence, got.known

    def write(transition: Callable[..., Effects], *args: object, **options: object) -> None:
        fence, known = held["chat"]
        done = perform(engine, known, transition, fence, *args, **options)  # type: ignore[arg-type]
        if done.effects.fence:
            held["chat"] = done.effects.fence, done.known

    def record() -> None:
        message = said("Let me look.", ToolCall("call-1", "look_up", {}))
        write(machine.record, message, start=["call-1"])

    def commit() -> None:
        write(machine.commit, results=[ToolResult("call-1", "found")])

    def queue() -> None:
        with transaction(engine) as tx:
            machine.send(tx, filled.pending, (Text("and then?"),))

    def finish_turn() -> None:
        claim()
        write(machine.finish_turn, message=said("Done."))

    def history() -> object:
        with transaction(engine) as tx:
            return prompt_history(tx, filled.long)

    def look() -> None:
        with transaction(engine) as tx:
            trees.below(tx, filled.long, [filled.pending])
            trees.look(tx, [filled.pending, filled.long])
            trees.last_words(tx, [filled.pending, filled.long])
            trees.children(tx, filled.long, limit=10)
            trees.busy_children(tx, filled.long)
            trees.size(tx, filled.long)
            trees.instructions(tx, filled.long)

    def look_outside() -> object:
        with transaction(engine) as tx:
            return outside.waiting(tx, None), outside.waiting(tx, 1)

    return {
        "heartbeat": lambda: claims.heartbeat(engine, worker_id),
        "claim": claim,
        "record": record,
        "commit": commit,
        "send": queue,
        "finish_turn": finish_turn,
        "history": history,
        "look at children": look,
        "sweep": lambda: sweep(engine, dead_after=DEAD_AFTER),
        "look for other apps' answers": look_outside,
        "sent": lambda: claims.sent(engine, filled.pending, "task"),
    }
