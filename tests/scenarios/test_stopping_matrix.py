"""Every cause of stopping, in every phase of a chat's work, on both pools: the right status.

For each cause and pool one worker is brought to have a chat in every phase; then the cause comes,
once, for all of them. Another worker is there to go on. Each cell of the matrix is a test.
"""

import itertools
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import psutil
import pytest
import redis
from sqlalchemy import text

from models.engine import make_engine
from rejoinder import embedded
from rejoinder.client import Client
from rejoinder.core.limits import LOCK_TIMEOUT_MS
from scripts.fleet import Fleet, Member, environment
from tests.chats import World
from tests.integration.invariants import assert_invariants
from tests.scenarios.conftest import QUICK
from tests.scenarios.phases import WORDS, Cast, KeepAlive, Phase, RowLock, bring_about
from tests.waiting import wait_until

SETTINGS = {
    **QUICK,
    "REJOINDER_DEAD_AFTER_SECONDS": "3",
    "REJOINDER_DRAIN_SECONDS": "0.5",
}
EXIT_SECONDS = 20.0
MOMENT = 0.3
OUTSIDE = (Phase.PARKED, Phase.SLEEPING)
OWNED = (Phase.STREAMING, Phase.SYNC_TOOL, Phase.ASYNC_TOOL, Phase.COMMITTING)


@dataclass(frozen=True)
class Cause:
    """Something that ends steps: how it is brought about, and what it means."""

    name: str
    bring: Callable[[Cast, Member], None]
    means: str
    """`interrupt`, `hand back` (the worker goes), `crash`, or `edit`."""
    env: tuple[tuple[str, str], ...] = ()

    @property
    def waiting(self) -> int:
        """How many wait for a row that is locked, the commit included, once the news is there."""
        return 2 if self.means in ("interrupt", "edit") else 0


def interrupt(cast: Cast, _victim: Member) -> None:
    for turn in cast.turns.values():
        cast.app.send_task(
            "rejoinder.interrupt", kwargs={"chat_id": turn.chat_id}, queue="rejoinder.control"
        )


def revoke_steps(cast: Cast, _victim: Member) -> None:
    ids = [str(cast.row(phase)["step_id"]) for phase in Phase]
    cast.app.control.revoke(ids, terminate=True, signal="SIGKILL")


def revoke_plainly(cast: Cast, _victim: Member) -> None:
    cast.app.control.revoke([str(cast.row(phase)["step_id"]) for phase in Phase])


def revoke_turns_by_stamp(cast: Cast, _victim: Member) -> None:
    turns = [turn.turn_id for turn in cast.turns.values()]
    cast.app.control.revoke_by_stamped_headers({"turn_id": turns}, terminate=True)


def revoke_results(cast: Cast, _victim: Member) -> None:
    for turn in cast.turns.values():
        cast.client.result(turn.turn_id).revoke(terminate=True)


def edit(cast: Cast, _victim: Member) -> None:
    for turn in cast.turns.values():
        (first,) = cast.world.read(
            "SELECT min(id) AS id FROM rejoinder.messages WHERE chat_id = :c", c=turn.chat_id
        )
        cast.app.send_task(
            "rejoinder.edit_message",
            kwargs={"chat_id": turn.chat_id, "message_id": first["id"], "content": "Edited."},
            queue="rejoinder.control",
        )


def send(*numbers: signal.Signals) -> Callable[[Cast, Member], None]:
    def bring(_cast: Cast, victim: Member) -> None:
        for number in numbers:
            victim.signal(number)
            time.sleep(0.3)  # two of a kind at once are one

    return bring


def control_shutdown(cast: Cast, victim: Member) -> None:
    victim.stopping = True
    cast.app.control.shutdown(destination=[f"{victim.name}@{socket.gethostname()}"])


COLD = (("REMAP_SIGTERM", "SIGQUIT"),)
CAUSES = (
    Cause("interrupt", interrupt, "interrupt"),
    Cause("revoke by step, terminate", revoke_steps, "interrupt"),
    Cause("revoke by step", revoke_plainly, "interrupt"),
    Cause("revoke by stamped turn", revoke_turns_by_stamp, "interrupt"),
    Cause("revoke of the turn's result", revoke_results, "interrupt"),
    Cause("edit", edit, "edit"),
    Cause("SIGTERM", send(signal.SIGTERM), "hand back"),
    Cause("SIGINT", send(signal.SIGINT), "hand back"),
    Cause("SIGINT twice", send(signal.SIGINT, signal.SIGINT), "hand back"),
    Cause("SIGQUIT", send(signal.SIGQUIT), "hand back"),
    Cause("SIGTERM remapped", send(signal.SIGTERM), "hand back", COLD),
    Cause("control shutdown", control_shutdown, "hand back"),
    Cause("SIGKILL", send(signal.SIGKILL), "crash"),
)


@dataclass
class Seen:
    """What became of everybody."""

    cast: Cast
    cause: Cause
    pool: str
    exit_code: int | None
    exit_seconds: float
    log: str

    def crashed(self, phase: Phase) -> bool:
        """Whether a crash was ever counted on this chat."""
        chat_id = self.cast.turns[phase].chat_id
        return bool(self.cast.world.read("SELECT 1 FROM crashed WHERE chat_id = :c", c=chat_id))


KEEP_CRASHES = """
CREATE TABLE crashed (chat_id uuid);
CREATE FUNCTION note_crash() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN INSERT INTO crashed VALUES (NEW.id); RETURN NULL; END';
CREATE TRIGGER note_crash AFTER UPDATE ON rejoinder.chats FOR EACH ROW
    WHEN (NEW.crashes > OLD.crashes) EXECUTE FUNCTION note_crash();
"""


@dataclass
class Theatre:
    """A fleet of one pool, in which workers are replaced as causes use them up."""

    pool: str
    database_url: str
    fleet: Fleet
    client: Client
    world: World
    numbers: Iterator[int]

    def workers(self, env: Mapping[str, str]) -> tuple[Member, Member]:
        """The one that the cause is for, and the one that is to go on."""
        alive = [m for m in self.fleet.members if m.alive and m.name.startswith("steps")]
        if env:
            for member in alive[1:]:
                member.stop()
            alive = [self._start(env), *alive[:1]]
        while len(alive) < 2:
            alive.append(self._start({}))
        self.fleet.wait_until_ready(*alive)
        for member in alive:
            children = psutil.Process(member.pid).children()
            assert len(children) == (8 if self.pool == "prefork" else 0)
        return alive[0], alive[1]

    def _start(self, env: Mapping[str, str]) -> Member:
        return self.fleet.worker(
            f"steps{next(self.numbers)}",
            pool=self.pool,
            concurrency=8,
            queues=["rejoinder.steps"],
            env=env,
        )


@pytest.fixture(scope="module", params=["threads", "prefork"])
def theatre(
    request: pytest.FixtureRequest,
    servers: embedded.Servers,
    make_database: Callable[[], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Theatre]:
    database_url = make_database()
    with redis.Redis.from_url(servers.redis_url) as connection:
        connection.flushdb()
    engine = make_engine(database_url)
    with engine.begin() as tx:
        tx.execute(text(KEEP_CRASHES))
    world = World(engine)
    env = environment(database_url, servers.redis_url, **SETTINGS)
    folder = tmp_path_factory.mktemp("theatre")
    with (
        Fleet(env, folder) as fleet,
        Client(broker_url=servers.redis_url, timeout=30) as client,
        closing(KeepAlive(world)),
    ):
        fleet.worker("control", queues=["rejoinder.control"], concurrency=8)
        fleet.wait_until_ready()
        yield Theatre(request.param, database_url, fleet, client, world, itertools.count(1))
    engine.dispose()


@pytest.fixture(scope="module", params=CAUSES, ids=lambda cause: cause.name)
def seen(
    request: pytest.FixtureRequest, theatre: Theatre, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Seen]:
    cause: Cause = request.param
    victim, next_one = theatre.workers(dict(cause.env))
    with closing(RowLock(theatre.database_url)) as lock:
        cast = Cast(theatre.client, theatre.world, tmp_path_factory.mktemp("notes"), {}, lock)
        _consume(cast, next_one, begin=False)
        _consume(cast, victim, begin=False)
        bring_about(cast, partial(_consume, cast, victim))
        cause.bring(cast, victim)
        _let_go(cast, cause)
        if cause.means == "interrupt":
            _settle(cast, cause)
        _consume(cast, next_one, begin=True)
        began, code = time.monotonic(), None
        if cause.means in ("hand back", "crash"):
            code = victim.wait(EXIT_SECONDS)
        took = time.monotonic() - began
        _settle(cast, cause)
        yield Seen(cast, cause, theatre.pool, code, took, victim.text())


def _consume(cast: Cast, worker: Member, *, begin: bool) -> None:
    """Let a worker take steps from now on, or no more."""
    control = cast.app.control
    act = control.add_consumer if begin else control.cancel_consumer
    name = f"{worker.name}@{socket.gethostname()}"

    def heard() -> bool:
        # A worker listens a moment after it has said that it is ready: what comes before is lost.
        answers = act("rejoinder.steps", destination=[name], reply=True, timeout=3, limit=1)
        return bool(answers) and "ok" in answers[0][name]

    wait_until(heard, 30, f"an answer of {name}")


def _let_go(cast: Cast, cause: Cause) -> None:
    """Let whoever was held up at the commit go on, once the news has had its chance.

    News that changes the row waits behind the commit by then: whoever comes at the moment of the
    release may be served first.
    """

    def no_more_come() -> bool:
        waiting = cast.lock.waiting()
        time.sleep(MOMENT)
        return waiting >= cause.waiting and cast.lock.waiting() <= waiting

    wait_until(no_more_come, LOCK_TIMEOUT_MS / 2000, "the news, behind the commit")
    cast.lock.release()


def _settle(cast: Cast, cause: Cause) -> None:
    outside = OUTSIDE if cause.means in ("hand back", "crash") else ()

    def at_rest() -> bool:
        cast.app.send_task("rejoinder.sweep", queue="rejoinder.control", ignore_result=True)
        time.sleep(0.2)
        return all(
            cast.status(phase) in ("waiting", "error") for phase in Phase if phase not in outside
        )

    wait_until(at_rest, 45, "rest")


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.timeout(240)
def test_the_cause_decides_the_status(seen: Seen, phase: Phase) -> None:
    match seen.cause.means:
        case "interrupt":
            _stopped(seen.cast, phase)
        case "edit":
            _edited(seen.cast, phase)
        case means:
            _went_on(seen.cast, phase)
            # Children of a prefork pool outlive their parent, and hand back.
            dies = means == "crash" and seen.pool == "threads"
            # What Postgres has been told counts, though the worker does not live to hear of it.
            assert seen.crashed(phase) is (
                dies and phase in OWNED and phase is not Phase.COMMITTING
            )


@pytest.mark.timeout(240)
def test_the_worker_ends_as_it_should(seen: Seen) -> None:
    assert_invariants(seen.cast.world.engine)
    assert "the step failed" not in seen.log
    if seen.cause.means != "crash":  # children of a killed parent complain of its broken pipes
        assert "Traceback" not in seen.log
    if seen.cause.means == "hand back":
        assert seen.exit_code == 0
        assert seen.exit_seconds < EXIT_SECONDS


def _stopped(cast: Cast, phase: Phase) -> None:
    assert cast.status(phase) == "waiting"
    row, said = cast.row(phase), cast.history(phase)
    assert (row["attempt"], row["crashes"], row["queue_length"]) == (0, 0, 0)
    if phase is Phase.COMMITTING:  # it was there first
        assert cast.turn_states(phase) == ["finished"]
        assert said[1:] == [("assistant", "Committed.")]
        return
    assert cast.turn_states(phase) == ["interrupted"]
    match phase:
        case Phase.STREAMING:
            ((role, words),) = said[1:]
            assert role == "assistant"
            assert words
            assert WORDS.startswith(words)
            assert words != WORDS
        case Phase.SYNC_TOOL | Phase.ASYNC_TOOL | Phase.PARKED | Phase.SLEEPING:
            assert [role for role, _ in said] == ["user", "assistant", "tool"]
            assert said[2][1].startswith("✗")
            assert "stopped" in said[2][1]
        case Phase.BETWEEN | Phase.RETRY:
            assert said[1:] == []


def _edited(cast: Cast, phase: Phase) -> None:
    """The first message is another one, and everything after it is new."""
    assert cast.status(phase) == "waiting"
    assert cast.turn_states(phase)[-2:] == (
        ["finished", "finished"] if phase is Phase.COMMITTING else ["cancelled", "finished"]
    )
    said = cast.history(phase)
    assert said[0] == ("user", "Edited.")
    tools = (Phase.SYNC_TOOL, Phase.ASYNC_TOOL)
    roles = ["user", "assistant", "tool", "assistant"] if phase in tools else ["user", "assistant"]
    assert [role for role, _ in said] == roles
    if phase in tools:
        assert said[2][1] == "✓held"
        assert cast.noted(phase).count("begin") == 2
    if phase is Phase.STREAMING:
        assert said[1][1] == WORDS


def _went_on(cast: Cast, phase: Phase) -> None:
    row, said = cast.row(phase), cast.history(phase)
    if phase in OUTSIDE:
        assert row["status"] == ("requires_action" if phase is Phase.PARKED else "sleeping")
        return
    assert row["status"] == "waiting"
    assert cast.turn_states(phase) == ["finished"]
    assert (row["attempt"], row["crashes"]) == (0, 0)
    tools = (Phase.SYNC_TOOL, Phase.ASYNC_TOOL)
    roles = ["user", "assistant", "tool", "assistant"] if phase in tools else ["user", "assistant"]
    assert [role for role, _ in said] == roles
    match phase:
        case Phase.STREAMING:
            assert said[1][1] == WORDS
        case Phase.SYNC_TOOL:
            assert "unknown" in said[2][1]
            assert cast.noted(phase).count("begin") == 1
        case Phase.ASYNC_TOOL:
            assert said[2][1] == "✓held"
            assert cast.noted(phase).count("begin") == 2
        case Phase.COMMITTING:
            assert said[1][1] == "Committed."
        case Phase.BETWEEN:
            assert said[1][1] == "At last."
        case _:
            assert said[1][1] == "Retried."
