"""Handing calls to another app when the broker is in no mood, and the sweep that looks after them.

The broker and the result backend are replaced here by ones that fail on purpose; how they work
together for real is in tests/scenarios/test_other_apps.py.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from celery import states

from models import claims, machine, outside
from models.engine import transaction
from rejoinder import streams
from rejoinder.core.effects import Effects, Send
from rejoinder.core.messages import CallPlan
from rejoinder.core.settings import Settings
from rejoinder.core.state import Status
from rejoinder.tools import Registry, celery_tool
from rejoinder.tools.celery_tool import CeleryTool
from tasks import app, callbacks, dispatch
from tasks.runtime import Runtime
from tests.chats import Subject, World, call, said, words
from tests.conftest import RedisSpace
from tests.integration.reading import calls, history, sql


def make(name: str, *, idempotent: bool) -> CeleryTool:
    schema = {"type": "object"}
    return celery_tool(
        "billing.refund",
        name=name,
        schema=schema,
        description="",
        queue="billing",
        idempotent=idempotent,
    )


ONCE, AGAIN = make("once", idempotent=False), make("again", idempotent=True)


class Broker:
    """What was sent; refuses while it is `away`. And a result backend."""

    def __init__(self) -> None:
        self.away = self.broken = False
        self.asked = 0
        self.sent: list[dict[str, Any]] = []
        self.before: Callable[[], None] = lambda: None
        self.stored: dict[str, dict[str, Any]] = {}

    def send_task(self, name: str, **options: Any) -> None:
        if self.away:
            raise ConnectionError("the broker is away")
        self.before()
        self.sent.append({"name": name, **options})

    def get_task_meta(self, task_id: str, *, cache: bool) -> dict[str, Any]:
        assert not cache
        self.asked += 1
        if self.broken:
            raise redis.ConnectionError("the result backend is away")
        return self.stored.get(task_id, {"status": states.PENDING, "result": None})

    @property
    def tasks(self) -> list[str]:
        return [each["task_id"] for each in self.sent if each["name"] == "billing.refund"]


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    made = Broker()
    monkeypatch.setattr(app, "send_task", made.send_task)
    monkeypatch.setattr(app.backend, "get_task_meta", made.get_task_meta)
    monkeypatch.setattr(callbacks, "_seen_up_to", None)
    return made


@pytest.fixture
def runtime(database_url: str, redis_space: RedisSpace) -> Iterator[Runtime]:
    made = Runtime(Settings(database_url=database_url, redis_url=redis_space.url))
    made.tools = Registry([ONCE, AGAIN])
    yield made
    made.events.close()
    made.engine.dispose()
    made.redis.close()


@pytest.fixture
def world(runtime: Runtime) -> World:
    return World(runtime.engine)


def ask(world: World, *tools: CeleryTool, of: Subject | None = None) -> tuple[Subject, Effects]:
    """A running chat that has asked for these tools, and what is to be published."""
    subject = of or world.running()
    asked = [call(f"call-{number}", tool.name) for number, tool in enumerate(tools, 1)]
    plans: dict[str, CallPlan] = {
        each.call_id: tool.plan_for(each) for each, tool in zip(asked, tools, strict=True)
    }
    effects = world.do(
        machine.record, subject.held, said("Look.", *asked), plans=plans, start=list(plans)
    )
    subject.fence = effects.fence
    return subject, effects


def sleep(world: World, subject: Subject) -> Effects:
    return world.do(machine.sleep, subject.held, deadline_seconds=300)


def a_while_ago(world: World) -> None:
    sql(world, "UPDATE rejoinder.tool_calls SET started_at = now() - interval '1 minute'")


def marked(world: World) -> list[bool]:
    return [row["sent"] for row in world.read("SELECT sent FROM rejoinder.tool_calls ORDER BY id")]


def test_a_call_is_sent_with_its_own_task_id_and_noted(
    world: World, runtime: Runtime, broker: Broker
) -> None:
    _, effects = ask(world, ONCE)
    dispatch.publish(runtime, effects)
    (sent,) = broker.sent
    (planned,) = effects.sends
    assert (sent["task_id"], sent["queue"]) == (planned.external_id, "billing")
    assert sent["kwargs"] == {"q": "call-1"}
    for link, failed in ((sent["link"], None), (sent["link_error"], True)):
        assert (link.task, link.options["queue"]) == (
            "rejoinder.task_answered",
            "rejoinder.control",
        )
        assert link.options["serializer"] == "json"
        assert link.kwargs.get("failed") == failed
        assert link.kwargs["external_id"] == planned.external_id
    assert marked(world) == [True]


def test_readers_hear_of_a_call_before_anybody_can_answer_it(
    world: World, runtime: Runtime, broker: Broker
) -> None:
    subject, effects = ask(world, ONCE)
    name = streams.key_of(runtime.settings.redis_prefix, subject.id)
    told: list[streams.StreamEvent] = []
    broker.before = lambda: told.extend(streams.backwards(runtime.redis, name))
    dispatch.publish(runtime, effects)
    newest = told[0]
    assert (newest.kind, newest.data["state"]) == ("tool", "started")
    assert len([*streams.backwards(runtime.redis, name)]) == len(told), "and only once"


def test_two_calls_have_two_task_ids(world: World, runtime: Runtime, broker: Broker) -> None:
    _, effects = ask(world, ONCE, ONCE)
    dispatch.publish(runtime, effects)
    assert len(set(broker.tasks)) == 2


def test_a_call_that_cannot_be_sent_is_told_at_once_unless_it_may_be_sent_twice(
    world: World, runtime: Runtime, broker: Broker
) -> None:
    broker.away = True
    subject, effects = ask(world, ONCE, AGAIN)
    dispatch.publish(runtime, effects)
    assert calls(world, subject.id) == {"call-1": "finished", "call-2": "started"}
    assert marked(world) == [False, False]
    assert sleep(world, subject).status is Status.SLEEPING
    broker.away = False
    a_while_ago(world)
    callbacks.look_for_answers(runtime)
    assert broker.tasks == [effects.sends[1].external_id], "the same task id"
    assert marked(world) == [False, True]
    callbacks.look_for_answers(runtime)
    assert len(broker.tasks) == 1, "once is enough"


def test_a_call_that_cannot_be_sent_does_not_keep_the_chat_asleep(
    world: World, runtime: Runtime, broker: Broker
) -> None:
    broker.away = True
    subject, effects = ask(world, ONCE)
    dispatch.publish(runtime, effects)
    assert sleep(world, subject).status is Status.PENDING
    assert history(world, subject.id)[-1] == f"tool: call-1!{dispatch.NOT_SENT}"


def test_a_worker_that_died_before_it_sent_a_call_leaves_it_to_the_sweep(
    world: World, runtime: Runtime, broker: Broker
) -> None:
    subject, _ = ask(world, ONCE, AGAIN)  # and nothing is published
    world.do(machine.recover, subject.id, subject.held.lease_id)
    subject.fence = world.claim(subject.id)
    assert sleep(world, subject).status is Status.SLEEPING
    callbacks.look_for_answers(runtime)
    assert broker.tasks == [], "whoever sends it may just be slow"
    a_while_ago(world)
    callbacks.look_for_answers(runtime)
    assert calls(world, subject.id) == {"call-1": "finished", "call-2": "started"}
    assert len(broker.tasks) == 1
    world.do(machine.interrupt, subject.id)
    assert dispatch.NOT_SENT in history(world, subject.id)[-1]


@pytest.mark.parametrize(
    ("stored", "told"),
    [
        ({"status": states.SUCCESS, "result": {"ok": 1}}, '={"ok": 1}'),
        ({"status": states.SUCCESS, "result": None}, "=null"),
        (
            {"status": states.FAILURE, "result": ValueError("n")},
            "!The task failed with ValueError: n",
        ),
        ({"status": states.REVOKED, "result": None}, f"!{callbacks.REVOKED}"),
        ({"status": states.FAILURE, "result": "?"}, f"!{callbacks.UNTOLD}"),
    ],
)
def test_an_answer_whose_callback_was_lost_is_found(
    world: World, runtime: Runtime, broker: Broker, stored: dict[str, Any], told: str
) -> None:
    subject, effects = ask(world, ONCE)
    dispatch.publish(runtime, effects)
    sleep(world, subject)
    broker.stored[effects.sends[0].external_id] = stored
    callbacks.look_for_answers(runtime)
    assert world.row(subject.id)["status"] == "sleeping", "the callback may be on its way"
    a_while_ago(world)
    callbacks.look_for_answers(runtime)
    assert world.row(subject.id)["status"] == "pending"
    assert history(world, subject.id)[-1] == f"tool: call-1{told}"


def test_a_task_that_is_at_work_is_left_alone(
    world: World, runtime: Runtime, broker: Broker
) -> None:
    subject, effects = ask(world, ONCE)
    dispatch.publish(runtime, effects)
    sleep(world, subject)
    a_while_ago(world)
    broker.stored[effects.sends[0].external_id] = {"status": states.STARTED, "result": None}
    callbacks.look_for_answers(runtime)
    assert world.row(subject.id)["status"] == "sleeping"


def test_a_result_backend_that_is_away_is_asked_once_a_sweep(
    world: World, runtime: Runtime, broker: Broker
) -> None:
    for _ in range(3):
        subject, _ = ask(world, ONCE)
        sleep(world, subject)
    a_while_ago(world)
    broker.broken = True
    callbacks.look_for_answers(runtime)
    assert broker.asked == 1
    assert {row["status"] for row in world.read("SELECT * FROM rejoinder.chats")} == {"sleeping"}


@pytest.mark.usefixtures("broker")
def test_an_answer_that_nobody_waits_for_changes_nothing(world: World, runtime: Runtime) -> None:
    subject, effects = ask(world, ONCE)
    dispatch.publish(runtime, effects)
    sleep(world, subject)
    whose = effects.sends[0]
    world.do(machine.interrupt, subject.id)
    before = world.dump()
    callbacks._answer(runtime, whose, states.SUCCESS, "late")
    assert world.dump() == before
    nobody = Send(runtime.worker_id, "x", "once", "y", {}, again=False)
    callbacks._answer(runtime, nobody, states.SUCCESS, "late")  # there is no such chat


@pytest.mark.usefixtures("broker")
def test_an_answer_does_not_fit_a_later_call_of_the_same_id(world: World, runtime: Runtime) -> None:
    subject, earlier = ask(world, ONCE)
    sleep(world, subject)
    world.do(machine.interrupt, subject.id)
    world.do(machine.send, subject.id, words("again"))
    subject.fence = world.claim(subject.id)
    _, later = ask(world, ONCE, of=subject)
    sleep(world, subject)
    callbacks._answer(runtime, earlier.sends[0], states.SUCCESS, "of the earlier one")
    assert world.row(subject.id)["status"] == "sleeping"
    callbacks._answer(runtime, later.sends[0], states.SUCCESS, "of the later one")
    assert history(world, subject.id)[-1] == "tool: call-1=of the later one"


@pytest.mark.usefixtures("broker")
def test_a_long_result_is_cut_to_what_the_model_can_read(world: World, runtime: Runtime) -> None:
    subject, effects = ask(world, ONCE)
    sleep(world, subject)
    callbacks._answer(runtime, effects.sends[0], states.SUCCESS, "x" * 5_000_000)
    assert len(history(world, subject.id)[-1]) < 1_000_000


def test_the_sweep_goes_through_all_sleepers_a_few_at_a_time(world: World) -> None:
    expected = set()
    for _ in range(5):
        subject, effects = ask(world, ONCE)
        sleep(world, subject)
        expected.add(effects.sends[0].external_id)
    a_while_ago(world)
    seen: list[str] = []
    after = None
    for _ in range(3):
        with transaction(world.engine) as tx:
            found, after = outside.waiting(tx, after, limit=2)
        seen += [each.send.external_id for each in found]
    assert sorted(seen) == sorted(expected)
    assert after is None, "then it begins anew"


def test_a_call_that_was_answered_meanwhile_is_not_noted_as_sent(world: World) -> None:
    subject, effects = ask(world, ONCE)
    world.do(machine.interrupt, subject.id)
    world.do(machine.finish_interrupt, subject.held)
    claims.sent(world.engine, subject.id, effects.sends[0].external_id)
    assert marked(world) == [False]
