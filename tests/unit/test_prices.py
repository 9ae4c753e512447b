"""What a model call costs, by hand and by the table."""

import json
from decimal import Decimal
from pathlib import Path

import pytest

from rejoinder.core.errors import Rejected
from rejoinder.core.messages import Usage, Used
from rejoinder.core.money import dollars, micros
from rejoinder.prices import Price, Prices

# By the hand: a dollar per million tokens is a millionth of a dollar per token.
CALL = Usage(
    input_tokens=1_000,  # without what a cache had to do with, as Anthropic reports it
    output_tokens=300,
    cache_read_tokens=5_000,
    cache_write_tokens=2_000,
)


def test_a_claude_call_with_a_cache_costs_what_the_price_list_says() -> None:
    # claude-sonnet-5: $2 in, $10 out, $0.20 from the cache, $2.50 into it.
    by_hand = 1_000 * 2 + 300 * 10 + 5_000 * 0.2 + 2_000 * 2.5
    assert by_hand == 11_000
    assert Prices().cost_micros("anthropic:claude-sonnet-5", CALL) == 11_000


@pytest.mark.parametrize(
    ("usage", "cost"),
    [
        (Usage(input_tokens=100, output_tokens=0), 200),
        (Usage(input_tokens=0, output_tokens=100), 1_000),
        (Usage(input_tokens=0, output_tokens=0, cache_read_tokens=100), 20),
        (Usage(input_tokens=0, output_tokens=0, cache_write_tokens=100), 250),
        (Usage(input_tokens=10), 20),
        (Usage(input_tokens=0, output_tokens=0), 0),
    ],
)
def test_each_kind_of_token_has_its_own_price(usage: Usage, cost: int) -> None:
    assert Prices().cost_micros("anthropic:claude-sonnet-5", usage) == cost


def test_reasoning_is_part_of_the_output_and_costs_nothing_on_top() -> None:
    thought = Usage(input_tokens=10, output_tokens=100, reasoning_tokens=90)
    plain = Usage(input_tokens=10, output_tokens=100)
    prices = Prices()
    model = "anthropic:claude-sonnet-5"
    assert prices.cost_micros(model, thought) == prices.cost_micros(model, plain)


def test_a_fraction_of_a_millionth_is_rounded_up() -> None:
    # $0.20 per million: one token is a fifth of a millionth of a dollar.
    one = Usage(input_tokens=0, output_tokens=0, cache_read_tokens=1)
    assert Prices().cost_micros("anthropic:claude-sonnet-5", one) == 1


@pytest.mark.parametrize(
    "model", ["anthropic:claude-nonsense-99", "scripted:echo", "nobody:gpt", "anthropic:", ""]
)
def test_an_unknown_price_is_unknown_and_not_zero(model: str) -> None:
    assert Prices().cost_micros(model, CALL) is None


def test_a_call_whose_tokens_nobody_told_has_an_unknown_cost() -> None:
    assert Prices().cost_micros("anthropic:claude-sonnet-5", Usage()) is None


def test_own_prices_come_before_the_table() -> None:
    own = '{"anthropic:claude-sonnet-5": {"input": 1, "output": 2}}'
    # Where a cache has no price of its own, its tokens are input.
    assert Prices.load(own).cost_micros("anthropic:claude-sonnet-5", CALL) == 8_000 + 600
    other = "anthropic:claude-haiku-4-5"
    assert Prices.load(own).cost_micros(other, CALL) == Prices().cost_micros(other, CALL)


def test_own_prices_have_four_kinds_and_a_place_for_anything() -> None:
    prices = Prices(
        {
            "local:*": Price(input=Decimal(0), output=Decimal(0)),
            "local:big": Price(
                input=Decimal("0.5"),
                output=Decimal(3),
                cache_read=Decimal("0.1"),
                cache_write=Decimal(1),
            ),
        }
    )
    assert prices.cost_micros("local:big", CALL) == 500 + 900 + 500 + 2_000
    assert prices.cost_micros("local:small", CALL) == 0, "that is a price, too"
    assert prices.cost_micros("elsewhere:big", CALL) is None


def test_prices_can_stand_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "prices.json"
    path.write_text(json.dumps({"scripted:*": {"input": "0.1", "output": 1}}))
    assert Prices.load(str(path)).cost_micros("scripted:x", Usage(10, 10)) == 11


@pytest.mark.parametrize(
    "setting",
    [
        "/no/such/file.json",
        "{",
        '{"a:b": 3}',
        '{"a:b": {"input": 1}}',
        '{"a:b": {"input": -1, "output": 1}}',
        '{"a:b": {"input": "NaN", "output": 1}}',
        '{"a:b": {"input": 1, "output": 1, "cached": 1}}',
    ],
)
def test_prices_that_make_no_sense_are_refused_by_their_variable(setting: str) -> None:
    with pytest.raises(Rejected, match="REJOINDER_PRICES") as refused:
        Prices.load(setting)
    assert "dollars per million" in refused.value.advice


@pytest.mark.parametrize(
    ("amount", "shown"),
    [(0, "0.00"), (1, "0.000001"), (11_000, "0.011"), (1_500_000, "1.50"), (10**12, "1000000.00")],
)
def test_money_is_told_in_dollars_exactly(amount: int, shown: str) -> None:
    assert dollars(amount) == shown
    assert micros(Decimal(shown)) == amount


def test_what_was_used_adds_up() -> None:
    some = Used(1, 2, 3, 4, 5, 6, 7, 8, 9)
    assert some + Used() == some
    assert some + some == Used(2, 4, 6, 8, 10, 12, 14, 16, 18)
    assert some.tokens == 2 + 3 + 4 + 5, "reasoning is in the output already"
