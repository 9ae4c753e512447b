"""What apps read about costs: of a message, a chat, a tree, an owner."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from models import accounts, machine, reading, steps
from models.engine import transaction
from rejoinder.core.limits import MOST_TOKENS
from rejoinder.core.messages import Budget, NewMessage, Role, Usage
from rejoinder.core.parts import Text
from rejoinder.prices import Price, Prices
from tests.chats import World, words

if TYPE_CHECKING:
    from uuid import UUID

    from sqlalchemy import Engine


@pytest.fixture
def world(engine: Engine) -> World:
    return World(engine)


def say(world: World, chat_id: UUID, model: str, cost: int | None, tokens: int = 10) -> None:
    message = NewMessage(
        Role.ASSISTANT,
        (Text("Well."),),
        model=model,
        usage=Usage(tokens, 2 * tokens, 3 * tokens, 4 * tokens, 1),
        cost_micros=cost,
        runtime_ms=1500,
    )
    world.do(machine.finish_turn, world.claim(chat_id), message=message)


def get(world: World, chat_id: UUID) -> dict[str, Any]:
    with transaction(world.engine) as tx:
        return reading.get_chat(tx, chat_id)


def owner_usage(world: World, owner: str = "owner", **period: Any) -> dict[str, Any]:
    with transaction(world.engine) as tx:
        return accounts.owner_usage(tx, owner, **period)


def test_a_chat_tells_its_own_usage_its_trees_and_its_budget(world: World) -> None:
    root = world.new(budget=Budget(micros=2_500_000))
    child = world.new(parent_id=root.id)
    say(world, root.id, "a:x", 1_000)
    say(world, child.id, "a:x", None)
    told = get(world, root.id)
    assert told["usage"] == {
        "calls": 1,
        "input_tokens": 10,
        "output_tokens": 20,
        "cache_read_tokens": 30,
        "cache_write_tokens": 40,
        "reasoning_tokens": 1,
        "tokens": 100,
        "cost_micros": 1_000,
        "cost": "0.001",
        "unpriced_calls": 0,
        "runtime_ms": 1500,
    }
    assert told["tree_usage"]["tokens"] == 200
    assert told["tree_usage"]["unpriced_calls"] == 1
    assert told["budget"] == {"tokens": None, "cost": "2.50", "cost_micros": 2_500_000}
    below = get(world, child.id)
    assert below["usage"]["calls"] == 1
    assert below["tree_usage"] == told["tree_usage"]
    assert below["budget"] == told["budget"]
    assert (told["title"], told["title_source"], told["action"]) == ("hello", "words", None)
    assert get(world, world.new().id)["budget"] is None


def test_a_message_tells_its_cost_and_a_users_has_none(world: World) -> None:
    root = world.new()
    say(world, root.id, "a:x", 11_000)
    with transaction(world.engine) as tx:
        user, answer = reading.get_messages(tx, root.id)["messages"]
    assert user["usage"] == {}
    assert answer["usage"] == {
        "input_tokens": 10,
        "output_tokens": 20,
        "cache_read_tokens": 30,
        "cache_write_tokens": 40,
        "reasoning_tokens": 1,
        "runtime_ms": 1500,
        "cost_micros": 11_000,
        "cost": "0.011",
    }


def test_an_owner_is_told_by_model_with_what_was_edited_away(world: World) -> None:
    root = world.new(model="a:named-by-the-user")
    say(world, root.id, "a:x", 1_000)
    say(world, world.new(parent_id=root.id).id, "a:y", None)
    (first, *_) = world.read("SELECT id FROM rejoinder.messages ORDER BY id")
    world.do(machine.edit, root.id, first["id"], words("Again."))
    say(world, root.id, "a:x", 2_000)
    told = owner_usage(world)
    assert list(told["models"]) == ["a:x", "a:y"], "what users say costs nothing"
    assert (told["models"]["a:x"]["calls"], told["models"]["a:x"]["cost_micros"]) == (2, 3_000)
    assert (told["models"]["a:y"]["unpriced_calls"], told["models"]["a:y"]["cost"]) == (1, "0.00")
    assert (told["usage"]["calls"], told["usage"]["cost"]) == (3, "0.003")
    assert told["usage"]["tokens"] == 300
    assert told["usage"]["runtime_ms"] == 4500
    assert owner_usage(world, "somebody else")["usage"]["calls"] == 0


def test_a_period_has_its_first_moment_and_not_its_last(world: World) -> None:
    root = world.new()
    say(world, root.id, "a:x", 1_000)
    (row,) = world.read("SELECT created_at FROM rejoinder.messages WHERE role = 'assistant'")
    at: datetime = row["created_at"]
    assert owner_usage(world, since=at)["usage"]["calls"] == 1
    assert owner_usage(world, until=at)["usage"]["calls"] == 0
    assert owner_usage(world, until=at + timedelta(microseconds=1))["usage"]["calls"] == 1
    told = owner_usage(world, since=at + timedelta(microseconds=1))
    assert told["models"] == {}
    assert datetime.fromisoformat(told["since"]).astimezone(UTC) > at.astimezone(UTC)


@pytest.mark.parametrize("tokens", [3_000_000_000, 10**30, -1, 1.5, float("nan"), "7", True, None])
def test_whatever_a_provider_counts_can_be_stored(world: World, tokens: Any) -> None:
    chat = world.new()
    usage = Usage(tokens, tokens, tokens, tokens, tokens)
    dear = Prices({"a:*": Price(input=Decimal(10) ** 12, output=Decimal(10) ** 12)})
    message = NewMessage(
        Role.ASSISTANT,
        (Text("Well."),),
        model="a:x",
        usage=usage,
        cost_micros=dear.cost_micros("a:x", usage),
    )
    took = steps.Took(
        turn_id=uuid4(),
        task_id=uuid4(),
        worker="w",
        attempt=0,
        outcome="finish_turn",
        seconds=1.0,
        claim_ms=1.0,
        load_ms=None,
        model_ms=None,
        tools_ms=None,
        write_ms=None,
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.output_tokens,
    )
    world.do(machine.finish_turn, world.claim(chat.id), message=message)
    with transaction(world.engine) as tx:
        steps.write(tx, chat.id, took)
    known = {10**30: MOST_TOKENS, 3_000_000_000: MOST_TOKENS, -1: 0}
    told = get(world, chat.id)["usage"]
    assert told["output_tokens"] == (known.get(tokens, 0) if type(tokens) is int else 0)
