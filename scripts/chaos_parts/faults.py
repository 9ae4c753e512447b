"""Carrying out faults: whom they hit is looked up in the rows at that moment, and noted.

A fault that lasts (a stopped worker, a server that is away) runs in a thread of its own, so that
the next one can come meanwhile. A fault that finds no victim is skipped, and counted as that.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import redis
from celery.result import AsyncResult
from sqlalchemy import Engine, text

from rejoinder.client import Client
from rejoinder.embedded import Servers
from scripts.chaos_parts.broker import task_ids_in
from scripts.chaos_parts.commands import OWNER
from scripts.chaos_parts.crew import CREW, Crew, Life
from scripts.chaos_parts.journal import Journal, Stop
from scripts.chaos_parts.schedule import Kind, Planned

T = TypeVar("T")

_LEASED = text("""
SELECT c.id::text AS chat_id, c.turn_id::text, w.name, to_jsonb(c) ->> 'step_id' AS step_id
  FROM rejoinder.chats c JOIN rejoinder.workers w ON w.id = c.worker_id
 WHERE c.status = 'running' ORDER BY c.id
""")
_BUSY = text("""
SELECT id::text AS chat_id, turn_id::text FROM rejoinder.chats
 WHERE status IN ('running', 'pending') ORDER BY id
""")
_LOCK = text("SELECT id::text FROM rejoinder.chats WHERE owner = :owner ORDER BY id FOR UPDATE")


@dataclass(frozen=True)
class Lasting:
    """How long things last, in seconds, from the shortest to the longest."""

    stopped: tuple[float, float] = (5.0, 25.0)
    server_away: tuple[float, float] = (0.0, 4.0)
    beat_away: tuple[float, float] = (15.0, 15.0)
    second_beat: tuple[float, float] = (10.0, 20.0)
    locked: tuple[float, float] = (2.0, 6.0)


class Faults:
    """Does harm, as planned."""

    def __init__(  # noqa: PLR0913  # everything that can be harmed
        self,
        crew: Crew,
        servers: Servers,
        engine: Engine,
        client: Client,
        journal: Journal,
        *,
        lasting: Lasting,
    ) -> None:
        """Begin with nothing under way."""
        self.crew = crew
        self.servers = servers
        self.engine = engine
        self.client = client
        self.journal = journal
        self.lasting = lasting
        self._threads: list[threading.Thread] = []
        self._enough = threading.Event()
        self._serving = threading.Lock()
        self._ways: dict[Kind, Callable[[Planned], bool]] = {
            Kind.WORKER_TERM: lambda p: self._leave(p, signal.SIGTERM),
            Kind.WORKER_QUIT: lambda p: self._leave(p, signal.SIGQUIT),
            Kind.WORKER_INT_TWICE: self._interrupt_twice,
            Kind.CONTROL_SHUTDOWN: self._control_shutdown,
            Kind.WORKER_KILL: self._kill,
            Kind.CONTROL_KILL: lambda p: self._kill(p, "control"),
            Kind.OTHER_TERM: lambda p: self._leave(p, signal.SIGTERM, "other"),
            Kind.OTHER_KILL: lambda p: self._kill(p, "other"),
            Kind.CHILD_KILL: self._kill_child,
            Kind.PARENT_KILL: self._kill_parent,
            Kind.WORKER_STOP: self._pause,
            Kind.REVOKE_STEP: lambda p: self._revoke_step(p, "SIGTERM"),
            Kind.REVOKE_STEP_KILL: lambda p: self._revoke_step(p, "SIGKILL"),
            Kind.REVOKE_STAMP: self._revoke_stamp,
            Kind.REVOKE_TURN: self._revoke_turn,
            Kind.INTERRUPT: self._interrupt,
            Kind.DUPLICATE: self._duplicate,
            Kind.BROKER_RESTART: self._restart_broker,
            Kind.FLUSH: self._flush,
            Kind.CUT_CLIENTS: self._cut_clients,
            Kind.DATABASE_RESTART: self._restart_database,
            Kind.LOCKED_ROWS: self._lock_rows,
            Kind.BEAT_KILL: self._beat_away,
            Kind.SECOND_BEAT: self._second_beat,
        }

    def begin(self, planned: Planned) -> None:
        """Let a fault happen now, beside whatever else happens."""

        def run() -> None:
            try:
                took_place = self._ways[planned.kind](planned)
            except Exception as error:  # noqa: BLE001  # another fault is in its way
                self.journal.skip(f"{planned.kind}: {type(error).__name__}")
            else:
                if not took_place:
                    self.journal.skip(f"{planned.kind}: no victim")

        thread = threading.Thread(target=run, name=f"fault {planned.kind}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def finish(self, seconds: float = 90.0) -> None:
        """Cut short what lasts, and wait until all is over."""
        self._enough.set()
        end = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    # -- workers ------------------------------------------------------------------------------

    def _leave(self, planned: Planned, number: signal.Signals, role: str = "step") -> bool:
        life = self._victim(planned, role)
        if life is None:
            return False
        hit = self._chats_of(life.family)
        self.journal.fault(planned.kind, life.member.name, hit, life.family)
        life.tell(planned.kind)
        life.member.signal(number)
        self._replace(role)
        return True

    def _interrupt_twice(self, planned: Planned) -> bool:
        life = self._victim(planned)
        if life is None:
            return False
        hit = self._chats_of(life.family)
        self.journal.fault(planned.kind, life.member.name, hit, life.family)
        life.tell(planned.kind)
        life.member.signal(signal.SIGINT)
        self._replace()
        time.sleep(1.0)
        if life.member.alive:
            life.member.signal(signal.SIGINT)
        return True

    def _control_shutdown(self, planned: Planned) -> bool:
        life = self._victim(planned)
        if life is None:
            return False
        hit = self._chats_of(life.family)
        self.journal.fault(planned.kind, life.member.name, hit, life.family)
        life.tell(planned.kind)
        host = os.uname().nodename
        self.client.app.control.shutdown(destination=[f"{life.member.name}@{host}"])
        self._replace()
        return True

    def _kill(self, planned: Planned, role: str = "step") -> bool:
        """A machine that dies: the worker and all of its children, at once."""
        life = self._victim(planned, role)
        if life is None:
            return False
        self._end(planned, life)
        self._replace(role)
        return True

    def _end(self, planned: Planned, life: Life) -> None:
        life.tell(planned.kind)
        fault = self.journal.fault(planned.kind, life.member.name, (), life.family)
        self.crew.end([life])
        fault.hit = self._chats_of(life.family)  # now that it can change nothing any more

    def _kill_child(self, planned: Planned) -> bool:
        """One child that is at work."""
        parents = {pid: life for life in self.crew.well() for pid in life.family}
        working = {pid for row in self._leased() if (pid := _pid(row["name"])) in parents}
        pid = _choose(sorted(working - {life.member.pid for life in parents.values()}), planned)
        if pid is None:
            return False
        fault = self.journal.fault(planned.kind, f"{parents[pid].member.name}/{pid}", (), (pid,))
        os.kill(pid, signal.SIGKILL)
        fault.hit = self._chats_of({pid})
        return True

    def _kill_parent(self, planned: Planned) -> bool:
        """A parent whose children live on for a while."""
        life = self._victim(planned)
        if life is None:
            return False
        life.tell(planned.kind)
        fault = self.journal.fault(planned.kind, life.member.name, (), life.family)
        life.member.kill()
        fault.hit = self._chats_of(life.family)
        self._replace()
        return True

    def _pause(self, planned: Planned) -> bool:
        """A machine that hangs, and then goes on as if nothing had been."""
        life = self._victim(planned)
        if life is None:
            return False
        life.paused = True
        fault = self.journal.fault(planned.kind, life.member.name, (), life.family)
        os.killpg(life.member.pid, signal.SIGSTOP)
        fault.hit = self._chats_of(life.family)
        self._enough.wait(_between(self.lasting.stopped, planned.how_long))
        with suppress(ProcessLookupError):
            os.killpg(life.member.pid, signal.SIGCONT)
        fault.ended_at = time.time()
        life.paused = False
        return True

    # -- stops that come from outside ---------------------------------------------------------

    def _revoke_step(self, planned: Planned, number: str) -> bool:
        row = _choose(self._steps(), planned)
        if row is None:
            return False
        self._stop(planned, row)
        self.client.app.control.revoke(row["step_id"], terminate=True, signal=number)
        return True

    def _revoke_stamp(self, planned: Planned) -> bool:
        row = _choose(self._leased(), planned)
        if row is None:
            return False
        self._stop(planned, row)
        stamps = {"turn_id": [row["turn_id"]]}
        self.client.app.control.revoke_by_stamped_headers(stamps, terminate=True)
        return True

    def _revoke_turn(self, planned: Planned) -> bool:
        row = _choose(self._leased(), planned)
        if row is None:
            return False
        self._stop(planned, row)
        AsyncResult(row["turn_id"], app=self.client.app).revoke(terminate=True)
        return True

    def _interrupt(self, planned: Planned) -> bool:
        row = _choose(self._leased(), planned)
        if row is None:
            return False
        self._stop(planned, row)
        with suppress(Exception):  # it may come to nothing while other faults last
            self.client.interrupt(row["chat_id"], turn_id=row["turn_id"])
        return True

    def _duplicate(self, planned: Planned) -> bool:
        row = _choose(self._read(_BUSY), planned)
        if row is None:
            return False
        self.journal.fault(planned.kind, row["chat_id"])
        for _ in range(2):
            self.client.app.send_task(
                "rejoinder.step",
                kwargs={"chat_id": row["chat_id"]},
                queue="rejoinder.steps",
                ignore_result=True,
                stamped_headers=["turn_id"],
                turn_id=row["turn_id"],
            )
        return True

    # -- servers ------------------------------------------------------------------------------

    def _restart_broker(self, planned: Planned) -> bool:
        with self._serving:
            fault = self.journal.fault(planned.kind, "valkey", self._chats_of(None))
            away = _between(self.lasting.server_away, planned.how_long)
            began, messages = time.time(), task_ids_in(self.servers.redis_url)
            self.servers.restart("valkey", down_seconds=away, kill=planned.kill)
            self.journal.wiped(began, messages)
            self.journal.outage("valkey", fault.at)
            fault.ended_at = time.time()
        return True

    def _restart_database(self, planned: Planned) -> bool:
        with self._serving:
            fault = self.journal.fault(planned.kind, "postgres", self._chats_of(None))
            away = _between(self.lasting.server_away, planned.how_long)
            self.servers.restart("postgres", down_seconds=away, kill=planned.kill)
            self.journal.outage("postgres", fault.at)
            fault.ended_at = time.time()
        return True

    def _lock_rows(self, planned: Planned) -> bool:
        """Somebody's long transaction: commands for these chats wait, in workers that may fall."""
        with self.engine.begin() as connection:
            locked = connection.execute(_LOCK, {"owner": OWNER}).scalars().all()
            if not locked:
                return False
            fault = self.journal.fault(planned.kind, f"{len(locked)} chats")
            self._enough.wait(_between(self.lasting.locked, planned.how_long))
        fault.ended_at = time.time()
        return True

    def _flush(self, planned: Planned) -> bool:
        fault = self.journal.fault(planned.kind, "valkey", self._chats_of(None))
        began, messages = time.time(), task_ids_in(self.servers.redis_url, "FLUSHALL")
        self.journal.wiped(began, messages)
        self.journal.outage("valkey", fault.at)
        return True

    def _cut_clients(self, planned: Planned) -> bool:
        fault = self.journal.fault(planned.kind, "valkey", self._chats_of(None))
        with redis.Redis.from_url(self.servers.redis_url) as server:
            for kind in ("normal", "pubsub"):
                server.execute_command("CLIENT", "KILL", "TYPE", kind)
        self.journal.outage("valkey", fault.at)
        return True

    # -- beat ---------------------------------------------------------------------------------

    def _beat_away(self, planned: Planned) -> bool:
        beats = self.crew.well("beat")
        if not beats:
            return False
        for life in beats:
            self._end(planned, life)
        self._enough.wait(_between(self.lasting.beat_away, planned.how_long))
        if not self.crew.present("beat"):
            self.crew.start("beat")
        return True

    def _second_beat(self, planned: Planned) -> bool:
        life = self.crew.start("beat")
        self.journal.fault(planned.kind, life.member.name)
        self._enough.wait(_between(self.lasting.second_beat, planned.how_long))
        life.tell(planned.kind)
        self.crew.end([life])
        return True

    # -- whom ---------------------------------------------------------------------------------

    def _victim(self, planned: Planned, role: str = "step") -> Life | None:
        """A worker that is well; of those for steps, not the last one."""
        lives = self.crew.well(role)
        return _choose(lives, planned) if len(lives) > (role == "step") else None

    def _replace(self, role: str = "step") -> None:
        if len(self.crew.present(role)) < CREW[role] and not self._enough.is_set():
            self.crew.start(role)

    def _stop(self, planned: Planned, row: dict[str, Any]) -> None:
        self.journal.fault(planned.kind, row["chat_id"], (row["chat_id"],))
        self.journal.stop(Stop(row["chat_id"], row["turn_id"], time.time(), planned.kind))

    def _chats_of(self, pids: Collection[int] | None) -> tuple[str, ...]:
        """The chats that these processes (or all) have a lease on."""
        rows = self._leased()
        return tuple(r["chat_id"] for r in rows if pids is None or _pid(r["name"]) in pids)

    def _steps(self) -> list[dict[str, Any]]:
        """Steps that run, with their task ids: from the rows, or else from the workers."""
        rows = self._leased()
        if any(row["step_id"] for row in rows):
            return [row for row in rows if row["step_id"]]
        active = self.client.app.control.inspect(timeout=1.0).active() or {}
        ids = {
            chat_id: task["id"]
            for tasks in active.values()
            for task in tasks
            if task["name"] == "rejoinder.step"
            for chat_id in [row["chat_id"] for row in rows if row["chat_id"] in str(task["kwargs"])]
        }
        return [row | {"step_id": ids[row["chat_id"]]} for row in rows if row["chat_id"] in ids]

    def _leased(self) -> list[dict[str, Any]]:
        return self._read(_LEASED)

    def _read(self, query: Any) -> list[dict[str, Any]]:
        with self.engine.connect() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]


def _choose(among: list[T], planned: Planned) -> T | None:
    return among[int(planned.whom * len(among)) % len(among)] if among else None


def _between(span: tuple[float, float], share: float) -> float:
    low, high = span
    return low + (high - low) * share


def _pid(name: str) -> int | None:
    tail = name.rpartition(":")[2]
    return int(tail) if tail.isdigit() else None
