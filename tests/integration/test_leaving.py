"""A process that is going, and the parts of it: the flag, the drain, hints that come early."""

import os
import threading
from collections.abc import Iterator
from uuid import UUID

import anyio
import anyio.lowlevel
import pytest
from uuid_utils.compat import uuid7

from models import claims, machine
from rejoinder.core.cancellation import Cancellation, Cancelled
from rejoinder.core.effects import Cause
from rejoinder.core.limits import SUSPECT_AT
from rejoinder.core.settings import Settings
from tasks import lost, stopping
from tasks import runtime as runtimes
from tasks.claiming import claiming
from tasks.runtime import Runtime
from tests.chats import DEAD_AFTER, World
from tests.conftest import RedisSpace
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def going(monkeypatch: pytest.MonkeyPatch) -> stopping.Stopping:
    """This test's own: others are not to be told that they are going."""
    made = stopping.Stopping()
    monkeypatch.setattr(stopping, "this", made)
    made.start()
    return made


@pytest.fixture
def runtime(database_url: str, redis_space: RedisSpace) -> Iterator[Runtime]:
    made = Runtime(
        Settings(
            database_url=database_url,
            redis_url=redis_space.url,
            redis_prefix=redis_space.prefix,
            drain_seconds=0.3,
            heartbeat_seconds=0.2,
            dead_after_seconds=5,
            step_seconds=0.4,
        )
    )
    made.start()
    yield made
    made.close()


@pytest.fixture
def world(runtime: Runtime) -> World:
    return World(runtime.engine)


def test_steps_may_finish_and_are_then_cancelled(
    runtime: Runtime, going: stopping.Stopping, world: World
) -> None:
    object.__setattr__(runtime.settings, "step_seconds", 60.0)
    fence = world.claim(world.new().id, runtime.worker_id)
    with runtime.running(fence.chat_id, fence.lease_id) as step:
        told = threading.Event()
        step.cancellation.on_cancel(lambda _: told.set())
        going.begin()
        assert going.asked
        assert step.cancellation.cause is None
        assert told.wait(10)
        assert step.cancellation.cause is Cause.SHUTDOWN


@pytest.mark.parametrize("now", [False, True])
def test_an_order_to_go_does_not_wait_for_errands(
    runtime: Runtime, going: stopping.Stopping, world: World, *, now: bool
) -> None:
    object.__setattr__(runtime.settings, "step_seconds", 60.0)
    fence = world.claim(world.new().id, runtime.worker_id)
    held = threading.Event()

    def slow() -> None:
        held.wait(30)

    going.errand(slow)
    with runtime.running(fence.chat_id, fence.lease_id) as step:
        going.begin(now=now)
        wait_until(lambda: step.cancellation.cancelled)
    held.set()


def test_a_tool_that_blocks_the_loop_does_not_keep_other_chats_from_stopping(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtimes, "HEED_SECONDS", 0.2)
    released, blocked = threading.Event(), threading.Event()

    async def blocking() -> None:
        blocked.set()
        released.wait(30)  # as no async tool should

    async def other() -> None:
        await anyio.lowlevel.checkpoint()

    first = threading.Thread(target=runtime.run, args=(blocking, Cancellation()))
    first.start()
    assert blocked.wait(10)
    cancellation = Cancellation()
    cancellation.cancel(Cause.SHUTDOWN)
    with pytest.raises(Cancelled):
        runtime.run(other, cancellation)
    released.set()
    first.join(10)


def test_one_that_could_not_be_heard_does_not_judge(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert runtime.heartbeat.may_judge
    monkeypatch.setattr(claims, "heartbeat", lambda *_: 1 / 0)
    wait_until(lambda: not runtime.heartbeat.may_judge)


def test_a_process_that_begins_in_a_leaving_worker_is_told() -> None:
    """The first step of a child may come with the news."""
    told: list[str] = []
    going = stopping.Stopping()  # without threads: nobody else tells
    going.begin(now=True)
    going.on(lambda: told.append("drain"), lambda: told.append("hurry"))
    assert told == ["drain", "hurry"]


def test_in_a_hurry_steps_are_cancelled_at_once(
    runtime: Runtime, going: stopping.Stopping, world: World
) -> None:
    object.__setattr__(runtime.settings, "drain_seconds", 600.0)
    fence = world.claim(world.new().id, runtime.worker_id)
    with runtime.running(fence.chat_id, fence.lease_id) as step:
        going.begin(now=True)
        wait_until(lambda: step.cancellation.cancelled)
        assert step.cancellation.cause is Cause.SHUTDOWN


def test_a_claim_that_came_with_the_news_is_cancelled(
    runtime: Runtime, going: stopping.Stopping
) -> None:
    going.begin()
    with runtime.running(uuid7(), uuid7()) as step:
        assert step.cancellation.cause is Cause.SHUTDOWN


def test_a_hint_that_is_faster_than_the_claims_answer_is_kept(runtime: Runtime) -> None:
    lease_id = uuid7()
    runtime.cancel(lease_id, Cause.INTERRUPT)
    with runtime.running(uuid7(), lease_id) as step:
        assert step.cancellation.cause is Cause.INTERRUPT


def test_the_first_cause_stays(runtime: Runtime, going: stopping.Stopping) -> None:
    lease_id = uuid7()
    with runtime.running(uuid7(), lease_id) as step:
        runtime.cancel(lease_id, Cause.INTERRUPT)
        going.begin(now=True)
        runtime.cancel(lease_id, Cause.LEASE_LOST)
        assert step.cancellation.cause is Cause.INTERRUPT


def test_a_step_past_its_deadline_is_cancelled_with_that_cause(
    runtime: Runtime, world: World
) -> None:
    fence = world.claim(world.new().id, runtime.worker_id)
    with runtime.running(fence.chat_id, fence.lease_id) as step:
        wait_until(lambda: step.cancellation.cancelled)
        assert step.cancellation.cause is Cause.DEADLINE


def test_work_that_does_not_heed_its_cancellation_is_left_behind(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtimes, "HEED_SECONDS", 0.2)
    cancellation, released = Cancellation(), threading.Event()

    async def deaf() -> None:
        cancellation.cancel(Cause.SHUTDOWN)
        while not released.is_set():  # it is to be deaf
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.01)

    with pytest.raises(Cancelled) as stopped:
        runtime.run(deaf, cancellation)
    released.set()
    assert stopped.value.cause is Cause.SHUTDOWN


def suspect(world: World) -> UUID:
    """A chat whose next crash is its last."""
    chat = world.new()
    for _ in range(SUSPECT_AT):
        world.do(machine.recover, chat.id, world.claim(chat.id).lease_id)
    return chat.id


def test_a_process_runs_one_suspect_at_a_time(runtime: Runtime, world: World) -> None:
    one, other, innocent = suspect(world), suspect(world), world.new().id
    with claiming(runtime, one, uuid7()) as first:
        assert first is not None
        assert first.suspect
        with claiming(runtime, other, uuid7()) as second:
            assert second is None
        with claiming(runtime, innocent, uuid7()) as third:
            assert third is not None
    with claiming(runtime, other, uuid7()) as second:
        assert second is not None


def test_suspects_that_were_left_are_rung_for_one_after_the_other(
    runtime: Runtime, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    rung: list[UUID] = []
    monkeypatch.setattr("tasks.claiming.dispatch", lambda to: rung.append(to.chat_id))
    one, *others = [suspect(world) for _ in range(3)]
    with claiming(runtime, one, uuid7(), uuid7()):
        for other in others * 2:  # a repeated message is not rung for twice
            with claiming(runtime, other, uuid7(), uuid7()) as refused:
                assert refused is None
        assert rung == []
    assert rung == others[:1]
    with claiming(runtime, others[0], uuid7(), uuid7()) as second:
        assert second is not None
        assert rung == others[:1]
    assert rung == others
    with claiming(runtime, one, uuid7(), uuid7()):
        pass  # it is at work: that it cannot be had has another reason
    assert rung == others


def test_a_step_that_is_lost_before_it_has_its_chat_is_rung_for_again(
    runtime: Runtime, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    rung: list[UUID] = []
    monkeypatch.setattr("tasks.lost.dispatch", lambda to: rung.append(to.step_id))
    step_id = world.row(world.new().id)["step_id"]
    lost._recover(runtime, step_id)
    lost._recover(runtime, uuid7())  # of a step that has ended
    assert rung == [step_id]


def test_goodbye_removes_the_row_unless_chats_still_hang_on_it(
    runtime: Runtime, world: World
) -> None:
    rows = "SELECT 1 FROM rejoinder.workers WHERE id = :w"
    world.claim(world.new().id, runtime.worker_id)
    claims.retire_worker(runtime.engine, runtime.worker_id)
    assert world.read(rows, w=runtime.worker_id)
    world.do(machine.recover, *_leased(world, runtime.worker_id))
    runtime.close()
    assert not world.read(rows, w=runtime.worker_id)
    runtime.close()  # again is fine


def _leased(world: World, worker_id: UUID) -> tuple[UUID, UUID]:
    query = "SELECT id, lease_id FROM rejoinder.chats WHERE worker_id = :w"
    (row,) = world.read(query, w=worker_id)
    return row["id"], row["lease_id"]


def test_children_hear_the_end_of_the_pipe_and_of_their_parent(going: stopping.Stopping) -> None:
    going.before_forks()
    said, says = os.pipe()
    child = os.fork()
    if child == 0:  # no pytest in here
        stopping.begin_in_child()
        wait_until(lambda: stopping.this.asked)
        os.write(says, b"d")
        wait_until(lambda: stopping.this.hurried)
        os.write(says, b"h")
        os._exit(0)
    assert not going.asked
    going.begin()
    assert os.read(said, 1) == b"d"
    going.begin(now=True)
    assert os.read(said, 1) == b"h"
    assert os.waitpid(child, 0)[1] == 0
    for descriptor in (said, says):
        os.close(descriptor)


def test_a_dead_worker_cannot_claim(runtime: Runtime, world: World) -> None:
    chat = world.new()
    runtime.close()
    got = claims.claim(world.engine, chat.id, runtime.worker_id, dead_after=DEAD_AFTER)
    assert got is None
