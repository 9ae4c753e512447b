"""make demo: a chat's life in its rows, on a real Postgres that this starts and stops.

An app creates a chat and sends a second message while the first is worked on; a worker runs a tool
and answers; the second turn's worker dies in the middle, a sweep notices, another worker takes
over, and what the dead one still tries to write is refused. No model is called yet.
"""

import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from uuid import UUID

from sqlalchemy import Engine, text
from uuid_utils.compat import uuid7

from models import claims, machine
from models.engine import make_engine, transaction
from models.machine import NewChat
from models.migrate import upgrade
from models.sweep import sweep
from rejoinder import embedded
from rejoinder.core.effects import Effects, Fence
from rejoinder.core.errors import Stale
from rejoinder.core.messages import NewMessage, Role
from rejoinder.core.parts import Text, ToolCall, ToolResult

DEAD_AFTER = timedelta(seconds=15)


class Demo:
    """Prints what it does, and the chat's row after it."""

    def __init__(self, engine: Engine) -> None:
        """Begin with nothing."""
        self.engine = engine
        self.chat_id: UUID | None = None

    def do(
        self, who: str, transition: Callable[..., Effects], *args: object, **kw: object
    ) -> Effects:
        """Run a transition and show the row."""
        with transaction(self.engine) as tx:
            effects = transition(tx, *args, **kw)
        self.chat_id = effects.chat_id
        self.show(who, transition.__name__)
        return effects

    def claim(self, who: str, worker_id: UUID) -> Fence:
        """Let a worker take the chat."""
        got = self.chat_id and claims.claim(
            self.engine, self.chat_id, worker_id, dead_after=DEAD_AFTER
        )
        if not got:
            raise RuntimeError("the chat could not be claimed")
        self.show(who, "claim")
        return got.fence

    def show(self, who: str, what: str) -> None:
        """Print one line: who did what, and how the chat's row looks now."""
        query = text("SELECT * FROM rejoinder.chats WHERE id = :id")
        with self.engine.connect() as connection:
            row = connection.execute(query, {"id": self.chat_id}).mappings().one()
        lease = str(row["lease_id"])[-6:] if row["lease_id"] else "-"
        versions = f"{row['snapshot_version']}/{row['history_version']}/{row['queue_version']}"
        print(
            f"  {who:10} {what:14} → {row['status']:13} lease {lease:7} queue {row['queue_length']}"
            f"  crashes {row['crashes']}  versions {versions}"
        )

    def transcript(self) -> Iterator[str]:
        """What stands in history, in order."""
        query = text(
            "SELECT id, role, parts FROM rejoinder.messages WHERE chat_id = :id ORDER BY id"
        )
        with self.engine.connect() as connection:
            for row in connection.execute(query, {"id": self.chat_id}):
                for part in row.parts:
                    match part["type"]:
                        case "tool_call":
                            said = f"{part['name']}({part['arguments']})"
                        case "tool_result":
                            said = f"⇒ {part['content']}"
                        case _:
                            said = part["text"]
                    yield f"  {row.id:>3} {row.role:10} {said}"


def assistant(words: str, *calls: ToolCall) -> NewMessage:
    """Build what the model would have said."""
    return NewMessage(Role.ASSISTANT, (Text(words), *calls))


def play(engine: Engine) -> None:
    """Walk one chat through two turns, one of them with an accident."""
    demo = Demo(engine)
    alice, bob = uuid7(), uuid7()
    claims.register_worker(engine, alice, "worker A")
    claims.register_worker(engine, bob, "worker B")

    print("\nTurn 1: a tool call, and a second message meanwhile")
    chat = demo.do("app", machine.create, NewChat("you", (Text("What is the weather?"),)))
    fence = demo.claim("worker A", alice)
    asked = assistant("Let me look.", ToolCall("call-1", "weather", {"city": "Bonn"}))
    recorded = demo.do("worker A", machine.record, fence, asked, start=["call-1"])
    demo.do("app", machine.send, chat.chat_id, (Text("And tomorrow?"),))
    demo.do("worker A", machine.commit, recorded.fence, results=[ToolResult("call-1", "rain")])
    fence = demo.claim("worker A", alice)
    demo.do("worker A", machine.finish_turn, fence, message=assistant("It rains."))

    print("\nTurn 2: the queue's head was promoted; its worker dies")
    lost = demo.claim("worker A", alice)
    with engine.begin() as connection:  # no heartbeat for a while
        connection.execute(
            text(
                "UPDATE rejoinder.workers SET seen_at = now() - interval '1 minute' WHERE id = :w"
            ),
            {"w": alice},
        )
    sweep(engine, dead_after=DEAD_AFTER)
    demo.show("sweeper", "recover")
    fence = demo.claim("worker B", bob)
    try:
        with transaction(engine) as tx:
            machine.finish_turn(tx, lost, message=assistant("Too late."))
    except Stale as refusal:
        print(f"  worker A   finish_turn    ✗ {refusal}")
    demo.do("worker B", machine.finish_turn, fence, message=assistant("Sun, at last."))

    print("\nHistory")
    print("\n".join(demo.transcript()))


def main() -> int:
    """Start the servers, migrate, play, stop."""
    began = time.monotonic()
    with embedded.servers() as servers:
        upgrade(servers.database_url)
        print(f"Servers started and schema migrated in {time.monotonic() - began:.1f} s")
        engine = make_engine(servers.database_url)
        play(engine)
        engine.dispose()
        began = time.monotonic()
    print(f"\nServers stopped in {time.monotonic() - began:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
