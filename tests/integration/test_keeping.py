"""A worker that keeps a chat for its own next step: commit and claim in one, or handed back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from celery.app.task import Context

from models import claims, machine, snapshot
from models.machine.cas_store import perform
from rejoinder.core.effects import Cause, Dispatch, Effects
from rejoinder.core.errors import Stale
from rejoinder.core.messages import CallPlan, WhenBusy
from rejoinder.core.parts import ToolResult
from rejoinder.core.settings import Settings
from tasks import bell, dispatch, edges, keeping, lost, stopping
from tasks import runtime as runtimes
from tasks.claiming import claiming
from tasks.held import Held
from tasks.runtime import Runtime
from tasks.step import step
from tasks.timeline import Timeline
from tests.chats import DEAD_AFTER, World, call, said, words
from tests.integration.invariants import assert_invariants

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import RedisSpace

RESULTS = [ToolResult("a", "found")]


@pytest.fixture
def runtime(
    database_url: str, redis_space: RedisSpace, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Runtime]:
    settings = Settings(
        database_url=database_url, redis_url=redis_space.url, redis_prefix=redis_space.prefix
    )
    made = Runtime(settings)
    claims.register_worker(made.engine, made.worker_id, "this process")
    monkeypatch.setattr(runtimes, "_current", made)
    monkeypatch.setattr(stopping, "this", stopping.Stopping())
    yield made
    made.close()


@pytest.fixture
def world(runtime: Runtime) -> World:
    return World(runtime.engine)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Dispatch]:
    """What is given to the broker."""
    given: list[Dispatch] = []
    monkeypatch.setattr(dispatch, "dispatch", given.append)
    return given


@pytest.fixture
def rung(monkeypatch: pytest.MonkeyPatch) -> list[Dispatch]:
    """What this worker rings for itself; it has a place."""
    given: list[Dispatch] = []

    def ring(to: Dispatch, _request: object) -> bool:
        given.append(to)
        return True

    monkeypatch.setattr(bell, "has_place", lambda _: True)
    monkeypatch.setattr(bell, "ring", ring)
    return given


def held(runtime: Runtime, world: World, chat_id: UUID | None = None) -> Held:
    """A step that has recorded its call, and is about to commit."""
    chat_id = chat_id or world.new().id
    got = claims.claim(runtime.engine, chat_id, runtime.worker_id, dead_after=DEAD_AFTER)
    assert got is not None
    with runtime.running(chat_id, got.fence.lease_id) as running:
        has = Held(runtime, got, running.cancellation, Timeline(0.0), Context())
    has.load()
    has.write(machine.record, said("Let me look.", call("a")), plans={"a": CallPlan()}, start=["a"])
    return has


def kept(runtime: Runtime) -> claims.Claim:
    (claim,) = runtime.kept.values()
    return claim


def test_the_next_step_knows_what_a_claim_would_have_told(
    runtime: Runtime, world: World, rung: list[Dispatch]
) -> None:
    has = held(runtime, world)
    has.commit(results=RESULTS)
    claim, row = kept(runtime), world.row(has.chat_id)
    assert claim.known is not None
    assert {**claim.known.chat} == row
    assert (row["status"], row["lease_id"]) == ("running", claim.fence.lease_id)
    assert (row["step_id"], row["worker_id"]) == (claim.step_id, runtime.worker_id)
    assert [to.step_id for to in rung] == [claim.step_id]
    (now,) = world.read("SELECT clock_timestamp() AS now, max(id) AS last FROM rejoinder.messages")
    assert claim.known.now < now["now"]
    assert [*claim.known.message_ids] == [now["last"] + 1, now["last"] + 2]
    _, around = world.transact(lambda tx: snapshot.look(tx, has.chat_id, claim.turn_id))
    assert claim.around is not None
    assert vars(claim.around) | {"now": 0} == vars(around) | {"now": 0}
    steps = world.read("SELECT outcome, task_id FROM rejoinder.steps")
    assert [(s["outcome"], s["task_id"]) for s in steps] == [("commit", has.step_id)]
    assert_invariants(world.engine)


def test_it_goes_on_under_its_own_lease_and_the_step_before_can_write_no_more(
    runtime: Runtime, world: World, rung: list[Dispatch]
) -> None:
    has = held(runtime, world)
    has.commit(results=RESULTS)
    with pytest.raises(Stale):
        has.write(machine.finish_turn, message=said("Late."))
    (to,) = rung
    with claiming(runtime, has.chat_id, to.step_id) as claim:
        assert claim is not None
        assert claim.kept
        done = perform(
            runtime.engine, claim.known, machine.finish_turn, claim.fence, message=said("Done.")
        )
    assert done.known is None
    assert runtime.kept == {}
    assert world.row(has.chat_id)["status"] == "waiting"
    assert_invariants(world.engine)


def test_a_chat_that_somebody_else_has_touched_is_anybodys(
    runtime: Runtime, world: World, sent: list[Dispatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bell, "has_place", lambda _: True)
    has = held(runtime, world)
    world.do(machine.send, has.chat_id, words("And?"), when_busy=WhenBusy.STEER)
    has.commit(results=RESULTS)
    assert (runtime.kept, len(sent)) == ({}, 1)
    assert world.row(has.chat_id)["status"] == "pending"
    assert_invariants(world.engine)


@pytest.mark.parametrize("stop_first", [False, True])
def test_what_cannot_be_rung_for_here_is_handed_back(
    runtime: Runtime,
    world: World,
    sent: list[Dispatch],
    monkeypatch: pytest.MonkeyPatch,
    *,
    stop_first: bool,
) -> None:
    monkeypatch.setattr(bell, "has_place", lambda _: True)

    def ring(_to: Dispatch, _request: object) -> bool:
        if stop_first:
            world.do(machine.interrupt, has.chat_id)
        return False

    monkeypatch.setattr(bell, "ring", ring)
    has = held(runtime, world)
    has.commit(results=RESULTS)
    row = world.row(has.chat_id)
    assert runtime.kept == {}
    assert (row["status"], row["crashes"]) == ("waiting" if stop_first else "pending", 0)
    assert [to.step_id for to in sent] == ([] if stop_first else [row["step_id"]])
    assert_invariants(world.engine)


def test_a_worker_that_goes_hands_back_what_it_had_kept(
    runtime: Runtime, world: World, sent: list[Dispatch], rung: list[Dispatch]
) -> None:
    has = held(runtime, world)
    has.commit(results=RESULTS)
    runtime._cancel_in_the_end()
    row = world.row(has.chat_id)
    assert (row["status"], row["crashes"], runtime.kept) == ("pending", 0, {})
    assert [to.step_id for to in sent] == [row["step_id"]]
    assert row["step_id"] != rung[0].step_id


def test_a_step_that_begins_when_the_worker_goes_hands_its_chat_back(
    runtime: Runtime, world: World, sent: list[Dispatch], rung: list[Dispatch]
) -> None:
    has = held(runtime, world)
    has.commit(results=RESULTS)
    stopping.this.asked = True
    step.push_request(id=str(rung[0].step_id), stamps={"turn_id": str(has.turn_id)})
    step.run(str(has.chat_id))
    step.pop_request()
    row = world.row(has.chat_id)
    assert (row["status"], runtime.kept) == ("pending", {})
    assert [to.step_id for to in sent] == [row["step_id"]]


def test_a_step_that_was_revoked_before_it_began_stops_its_turn(
    runtime: Runtime, world: World, rung: list[Dispatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    errands: list[Any] = []
    monkeypatch.setattr(stopping.this, "errand", errands.append)
    has = held(runtime, world)
    has.commit(results=RESULTS)
    asked = Context({"id": str(rung[0].step_id), "stamps": {"turn_id": str(has.turn_id)}})
    edges._stop_its_turn(step, asked)
    for errand in errands:
        errand()
    row = world.row(has.chat_id)
    assert (row["status"], row["lease_id"], runtime.kept) == ("waiting", None, {})
    assert_invariants(world.engine)


def test_a_stop_that_comes_between_two_steps_is_heard_by_the_next(
    runtime: Runtime, world: World, rung: list[Dispatch]
) -> None:
    has = held(runtime, world)
    has.commit(results=RESULTS)
    stopped: Effects = world.do(machine.interrupt, has.chat_id)
    dispatch.publish(runtime, stopped)
    with (
        claiming(runtime, has.chat_id, rung[0].step_id) as claim,
        runtime.running(has.chat_id, claim.fence.lease_id if claim else UUID(int=0)) as running,
    ):
        assert running.cancellation.cause is Cause.INTERRUPT


@pytest.mark.parametrize("told", [True, False])
def test_a_stop_does_not_wait_for_a_step_that_does_not_begin(
    runtime: Runtime,
    world: World,
    rung: list[Dispatch],
    monkeypatch: pytest.MonkeyPatch,
    *,
    told: bool,
) -> None:
    monkeypatch.setattr(stopping.this, "errand", lambda act: act())
    has = held(runtime, world)
    has.commit(results=RESULTS)
    stopped: Effects = world.do(machine.interrupt, has.chat_id)
    if told:
        dispatch.publish(runtime, stopped)
    else:  # the hint was lost
        runtime.beat_once()
    assert (world.row(has.chat_id)["status"], runtime.kept, len(rung)) == ("waiting", {}, 1)
    assert_invariants(world.engine)


def test_a_chat_whose_ring_was_lost_is_handed_back_by_the_heartbeat(
    runtime: Runtime,
    world: World,
    sent: list[Dispatch],
    rung: list[Dispatch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stopping.this, "errand", lambda act: act())
    has = held(runtime, world)
    has.commit(results=RESULTS)
    assert rung
    runtime.beat_once()
    assert world.row(has.chat_id)["status"] == "running", "its step may be about to begin"
    runtime.beat_once()
    assert world.row(has.chat_id)["status"] == "pending"
    assert len(sent) == 1
    assert not keeping.hand_back(rung[0].step_id), "if it does begin, it finds nothing"


def test_a_chat_that_was_taken_away_is_kept_no_longer(
    runtime: Runtime, world: World, rung: list[Dispatch]
) -> None:
    has = held(runtime, world)
    has.commit(results=RESULTS)
    assert rung
    world.do(machine.recover, has.chat_id, kept(runtime).fence.lease_id)
    runtime.beat_once()
    assert runtime.kept == {}


def test_one_that_cannot_be_handed_back_does_not_keep_the_others(
    runtime: Runtime,
    world: World,
    sent: list[Dispatch],
    rung: list[Dispatch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for _ in range(2):
        held(runtime, world).commit(results=RESULTS)
    release, broken = machine.release, [True]

    def once(*args: Any, **options: Any) -> Effects:
        if broken.pop() if broken else False:
            raise RuntimeError("broken")
        return release(*args, **options)

    monkeypatch.setattr(machine, "release", once)
    runtime.close()
    assert (len(rung), len(sent), runtime.kept) == (2, 1, {})


def test_a_kept_chat_of_a_killed_worker_is_recovered(
    runtime: Runtime, world: World, rung: list[Dispatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    has = held(runtime, world)
    has.commit(results=RESULTS)
    monkeypatch.setattr(stopping.this, "errand", lambda act: act())
    lost.recover_step(rung[0].step_id)
    row = world.row(has.chat_id)
    assert (row["status"], row["crashes"]) == ("pending", 1)
    assert_invariants(world.engine)
