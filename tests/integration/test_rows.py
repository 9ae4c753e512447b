"""What goes into a row comes out of it unchanged, whatever a model or a person wrote."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import select
from sqlalchemy.orm import configure_mappers

from models import machine
from models.base import Base
from models.engine import transaction
from models.history import prompt_history
from models.machine import NewChat, keys
from models.tables import Chat, Message, QueuedMessage, ToolCallRow, Turn
from rejoinder.core import parts
from rejoinder.core.errors import Rejected
from rejoinder.core.messages import CallKind, CallPlan, Failure, NewMessage, Role
from rejoinder.core.parts import Raw, Text, ToolCall, ToolResult
from tests.chats import World, said, words
from tests.integration.reading import history, message_id, sql

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

    from rejoinder.core.effects import Fence
    from rejoinder.core.parts import Json

# By JSON's own rules, a high surrogate right before a low one is the character that they spell, so
# that pair (and only that) comes back as one character. No decoder of UTF-8 or UTF-16 yields it.
PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
any_text = st.text(st.characters(exclude_categories=())).filter(lambda s: not PAIR.search(s))
values: st.SearchStrategy[Json] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | any_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(any_text, values, max_size=3)
# One database for all examples of a test: they create chats of their own in it.
many = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

NASTY = "nul \x00, lone \ud800 and \udfff, back\\slash \\u0000 \\005c, \U0001f600, \x7f\x1b"
BIG = {"text": "é\x00\ud800'\"\\" * 140_000, "n": 10**4000, "f": [0.1, 1e308, -0.0, 5e-324]}
NAN: dict[str, Json] = {"value": float("nan")}


def nested(depth: int) -> dict[str, Json]:
    inner: Json = NASTY
    for _ in range(depth):
        inner = [inner]
    return {"deep": inner}


@pytest.fixture
def world(engine: Engine) -> World:
    return World(engine)


def same(stored: object, given: object) -> bool:
    """Equal to the last bit: 1 is not 1.0, -0.0 is not 0.0, and keys keep their order."""
    return json.dumps(stored) == json.dumps(given)


@many
@given(text=any_text, value=values, data=objects)
@example(text=NASTY, value=NASTY, data={NASTY: NASTY})
@example(text="x", value=None, data=BIG)
@example(text="x", value=[], data=nested(400))
def test_content_comes_back_unchanged(
    world: World, text: str, value: Json, data: dict[str, Json]
) -> None:
    new = NewChat("owner", words("hello"), system=(Text(text), Raw(data)), options=data)
    chat_id = world.do(machine.create, new).chat_id
    fence = world.claim(chat_id)
    asked = NewMessage(Role.ASSISTANT, (Text(text), ToolCall(f"id {text}", text, data)))
    plans = {f"id {text}": CallPlan(CallKind.EXTERNAL, external_id=text)}
    recorded = world.do(machine.record, fence, asked, plans=plans)
    world.do(machine.send, chat_id, (Text("queued"), Raw({"type": "odd", "data": data})))
    world.do(machine.sleep, recorded.fence, deadline_seconds=60)
    result = ToolResult(f"id {text}", value)
    assert world.do(machine.wake, chat_id, result).changed, "the call is found by its id"
    with transaction(world.engine) as tx:
        call = tx.scalars(select(ToolCallRow).where(ToolCallRow.chat_id == chat_id)).one()
        assert (call.call_id, call.name) == (f"id {text}", text)
        assert call.external_id == text
        assert same(call.arguments, data)
        assert same(call.result, parts.to_json(result))
        rows = tx.scalars(select(Message).where(Message.chat_id == chat_id).order_by(Message.id))
        system, _, assistant, tool = rows.all()
        assert parts.load(system.parts)[0] == Text(text)
        assert same(system.parts[1], data)
        assert same(assistant.parts, parts.dump(asked.parts))
        assert same(tool.parts, parts.dump([result]))
        assert same(tx.get_one(Chat, chat_id).options, data)
        queued = tx.scalars(select(QueuedMessage).where(QueuedMessage.chat_id == chat_id)).one()
        assert same(queued.parts[1], {"type": "odd", "data": data})


@many
@given(text=any_text, data=objects)
@example(text=NASTY, data={NASTY: NASTY})
@example(text="x", data=BIG)
def test_errors_and_retries_come_back_unchanged(
    world: World, text: str, data: dict[str, Json]
) -> None:
    subject = world.running()
    world.do(machine.retry_later, subject.held, delay_seconds=0, retry_state=data)
    failure = Failure(f"kind {text}", text, detail=text, request_id=text)
    with transaction(world.engine) as tx:
        assert same(tx.get_one(Chat, subject.id).retry_state, data)
    effects = world.do(machine.fail, world.claim(subject.id), failure)
    (ended,) = effects.ended
    with transaction(world.engine) as tx:
        assert same(tx.get_one(Chat, subject.id).last_error, dict(failure.to_json()))
        assert same(tx.get_one(Turn, ended.turn_id).error, dict(failure.to_json()))


def test_a_megabyte_is_no_trouble(world: World) -> None:
    assert len(json.dumps(BIG)) > 1_000_000
    text = "a\x00\ud800é" * 300_000
    subject = world.new(text)
    with transaction(world.engine) as tx:
        (message,) = prompt_history(tx, subject.id)
        assert parts.load(message.parts) == (Text(text),)


WRITES: dict[str, Callable[[World, Fence, dict[str, Json]], object]] = {
    "options": lambda w, _, bad: w.do(
        machine.create, NewChat("owner", words("hello"), options=bad)
    ),
    "a request with a key": lambda w, _, bad: w.transact(
        lambda tx: keys.once(tx, "owner", "k", bad, lambda: pytest.fail("it is not done"))
    ),
    "a first message": lambda w, _, bad: w.do(machine.create, NewChat("owner", (Raw(bad),))),
    "a queued message": lambda w, f, bad: w.do(machine.send, f.chat_id, (Raw(bad),)),
    "an edit": lambda w, f, bad: w.do(machine.edit, f.chat_id, message_id(w, "hello"), (Raw(bad),)),
    "arguments": lambda w, f, bad: w.do(
        machine.record, f, said("Hm.", ToolCall("call-2", "look_up", bad))
    ),
    "a result": lambda w, f, bad: w.do(machine.wake, f.chat_id, ToolResult("call-1", bad)),
    "a retry": lambda w, f, bad: w.do(machine.retry_later, f, delay_seconds=0, retry_state=bad),
}


@pytest.mark.parametrize("where", WRITES)
@pytest.mark.parametrize(
    "bad",
    [NAN, {"value": float("inf")}, nested(100_000), {"value": 10**5000}],
    ids=["nan", "infinity", "bottomless", "an endless number"],
)
def test_what_json_cannot_say_is_refused_and_nothing_is_stored(
    world: World, where: str, bad: dict[str, Json]
) -> None:
    subject = world.running() if where == "arguments" else world.asking(kind=CallKind.EXTERNAL)
    before = world.dump()
    with pytest.raises(Rejected) as refused:
        WRITES[where](world, subject.held, bad)
    assert "JSON" in str(refused.value)
    assert world.dump() == before


@pytest.mark.parametrize("text", ["a\x00b", "a\ud800", "\udc00b"])
def test_names_that_postgres_cannot_hold_are_refused(world: World, text: str) -> None:
    subject = world.running()
    before = world.dump()
    for new in (
        NewChat(text, words("hello")),
        NewChat("owner", words("hello"), model=text),
        NewChat("owner", words("hello"), labels={text: "x"}),
        NewChat("owner", words("hello"), labels={"x": text}),
    ):
        with pytest.raises(Rejected, match="NUL byte or half a surrogate pair"):
            world.do(machine.create, new)
    with pytest.raises(Rejected, match="The model"):
        world.do(machine.send, subject.id, words("hello"), model=text)
    with pytest.raises(Rejected, match="The model"):
        world.do(machine.edit, subject.id, message_id(world, "hello"), words("other"), model=text)
    for owner, key in ((text, "k"), ("owner", text)):
        with pytest.raises(Rejected, match="NUL byte or half a surrogate pair"):
            world.transact(partial(keys.once, owner=owner, key=key, request="", act=pytest.fail))
    with pytest.raises(Rejected):
        world.do(machine.record, subject.held, NewMessage(Role.ASSISTANT, words("x"), model=text))
    assert world.dump() == before


def test_an_owner_must_be_named(world: World) -> None:
    with pytest.raises(Rejected, match="say whose chat this is"):
        world.do(machine.create, NewChat("", words("hello")))


def test_history_is_in_the_order_of_ids_never_of_clocks(world: World) -> None:
    new = NewChat("owner", words("hello"), system=words("Be brief."))
    chat_id = world.do(machine.create, new).chat_id
    world.do(machine.finish_turn, world.claim(chat_id), message=said("Done."))
    sql(world, "UPDATE rejoinder.messages SET created_at = now() - id * interval '1 day'")
    with transaction(world.engine) as tx:
        shown = [parts.text_of(parts.load(row.parts)) for row in prompt_history(tx, chat_id)]
    assert shown == ["Be brief.", "hello", "Done."]


def test_messages_of_one_transaction_keep_their_order(world: World) -> None:
    subject = world.running()

    def act(tx: object) -> None:
        done = machine.record(tx, subject.held, said("one"))  # type: ignore[arg-type]
        assert done.fence is not None
        machine.finish_turn(tx, done.fence, message=said("two"))  # type: ignore[arg-type]
        machine.send(tx, subject.id, words("three"))  # type: ignore[arg-type]

    before = world.row(subject.id)["snapshot_version"]
    world.transact(act)
    assert history(world, subject.id)[1:] == ["assistant: one", "assistant: two", "user: three"]
    assert world.row(subject.id)["snapshot_version"] == before + 3


def test_nothing_is_loaded_by_surprise() -> None:
    configure_mappers()
    loaders = [
        (mapper.class_.__name__, relation.key, relation.lazy)
        for mapper in Base.registry.mappers
        for relation in mapper.relationships
    ]
    assert [each for each in loaders if each[2] not in ("raise", "write_only")] == []
    assert len(list(Base.registry.mappers)) == 9
