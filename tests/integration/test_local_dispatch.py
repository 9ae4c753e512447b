"""A chat that is claimed for the next step with the commit: the claim goes with it, or back."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from celery.app.task import Context

from models import claims, machine, snapshot
from models.machine.cas_store import perform
from rejoinder.core.effects import Dispatch
from rejoinder.core.errors import Stale
from rejoinder.core.messages import CallPlan, WhenBusy
from rejoinder.core.parts import ToolResult
from rejoinder.core.settings import Settings
from tasks import dispatch, local_dispatch, lost, stopping
from tasks import runtime as runtimes
from tasks.claiming import claiming
from tasks.held import Held
from tasks.runtime import Runtime
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


Offered = list[tuple[Dispatch, claims.Claim | None]]


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> Offered:
    """What this worker offers itself; it has a place."""
    given: Offered = []

    def offer(to: Dispatch, claim: claims.Claim | None, _request: object) -> bool:
        given.append((to, claim))
        return True

    monkeypatch.setattr(local_dispatch, "can_take", lambda _: True)
    monkeypatch.setattr(local_dispatch, "offer", offer)
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


def claim_in(offered: Offered) -> claims.Claim:
    ((_, claim),) = offered
    assert claim is not None
    return claim


@contextmanager
def beginning(claim: claims.Claim) -> Iterator[None]:
    """As in the thread that begins the step of a claim."""
    local_dispatch._thread.claim = claim
    try:
        yield
    finally:
        local_dispatch._thread.claim = None


def test_the_next_step_knows_what_a_claim_would_have_told(
    runtime: Runtime, world: World, offered: Offered
) -> None:
    has = held(runtime, world)
    has.commit(results=RESULTS)
    claim, row = claim_in(offered), world.row(has.chat_id)
    assert claim.known is not None
    assert {**claim.known.chat} == row
    assert (row["status"], row["lease_id"]) == ("running", claim.fence.lease_id)
    assert (row["step_id"], row["worker_id"]) == (claim.step_id, runtime.worker_id)
    assert [to.step_id for to, _ in offered] == [claim.step_id]
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
    runtime: Runtime, world: World, offered: Offered
) -> None:
    has = held(runtime, world)
    has.commit(results=RESULTS)
    with pytest.raises(Stale):
        has.write(machine.finish_turn, message=said("Late."))
    ((to, _),) = offered
    with beginning(claim_in(offered)), claiming(runtime, has.chat_id, to.step_id) as claim:
        assert claim is not None
        assert claim.kept
        done = perform(
            runtime.engine, claim.known, machine.finish_turn, claim.fence, message=said("Done.")
        )
    assert done.known is None
    assert world.row(has.chat_id)["status"] == "waiting"
    assert_invariants(world.engine)


def test_a_chat_that_somebody_else_has_touched_is_anybodys(
    runtime: Runtime, world: World, sent: list[Dispatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_dispatch, "can_take", lambda _: True)
    has = held(runtime, world)
    world.do(machine.send, has.chat_id, words("And?"), when_busy=WhenBusy.STEER)
    has.commit(results=RESULTS)
    assert len(sent) == 1
    assert world.row(has.chat_id)["status"] == "pending"
    assert_invariants(world.engine)


def test_a_claimed_chat_of_a_killed_worker_is_recovered(
    runtime: Runtime, world: World, offered: Offered, monkeypatch: pytest.MonkeyPatch
) -> None:
    has = held(runtime, world)
    has.commit(results=RESULTS)
    monkeypatch.setattr(stopping.this, "errand", lambda act: act())
    lost.recover_step(claim_in(offered).step_id)
    row = world.row(has.chat_id)
    assert (row["status"], row["crashes"]) == ("pending", 1)
    assert_invariants(world.engine)
