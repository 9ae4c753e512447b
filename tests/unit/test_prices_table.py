"""The table's prices, worked out once per model and day, are what the table itself says."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial

import genai_prices
import pytest
from genai_prices import types
from genai_prices.data import providers
from hypothesis import given, settings
from hypothesis import strategies as st

from rejoinder import prices
from rejoinder.core.messages import Usage
from rejoinder.core.money import micros
from rejoinder.prices import Prices

MODELS = {f"{provider.id}:{model.id}": model for provider in providers for model in provider.models}
TOKENS = (
    st.none() | st.integers(0, 1_000) | st.integers(100_000, 1_100_000) | st.integers(0, 10**12)
)
USAGES = st.builds(Usage, TOKENS, TOKENS, TOKENS, TOKENS, TOKENS)


def by_the_table(model: str, usage: Usage, at: datetime | None = None) -> Decimal | None:
    provider, _, name = model.partition(":")
    read, write = usage.cache_read_tokens or 0, usage.cache_write_tokens or 0
    counted = genai_prices.Usage(
        input_tokens=(usage.input_tokens or 0) + read + write,
        output_tokens=usage.output_tokens or 0,
        cache_read_tokens=read,
        cache_write_tokens=write,
    )
    try:
        found = genai_prices.calc_price(
            counted, name, provider_id=provider, genai_request_timestamp=at
        )
    except (LookupError, ValueError):
        return None
    return found.total_price


def sizes(model: types.ModelInfo) -> Iterator[int]:
    """The sizes of prompts at which a price of the model changes."""
    listed = model.prices if isinstance(model.prices, list) else [model]
    for each in listed:
        for price in vars(each.prices).values():
            if isinstance(price, types.TieredPrices):
                yield from (tier.start for tier in price.tiers)


def simple(model: str, day: date) -> bool:
    """Whether the table is asked only once for it."""
    found = prices._tariff(model, day)
    return not (isinstance(found, partial) and found.func is prices._ask)


@given(st.sampled_from(sorted(MODELS)), USAGES)
@settings(deadline=None, max_examples=300)
def test_a_cost_is_what_the_table_says(model: str, usage: Usage) -> None:
    told = by_the_table(model, usage)
    if usage.input_tokens is None and usage.output_tokens is None:
        told = None
    assert Prices().cost_micros(model, usage) == (None if told is None else micros(told))


@given(
    st.sampled_from(sorted(name for name, model in MODELS.items() if any(sizes(model)))),
    st.integers(-1, 1),
    st.floats(0, 1),
    st.integers(0, 10_000),
    st.data(),
)
@settings(deadline=None)
def test_a_long_prompt_has_the_price_of_its_size(
    model: str, beyond: int, cached: float, output: int, data: st.DataObject
) -> None:
    size = data.draw(st.sampled_from(sorted(set(sizes(MODELS[model]))))) + beyond
    read = int(max(0, size) * cached)
    usage = Usage(max(0, size) - read, output, cache_read_tokens=read)
    told = by_the_table(model, usage)  # some have an id that is not their name
    assert Prices().cost_micros(model, usage) == (None if told is None else micros(told))


def test_every_model_of_the_table_costs_what_the_table_says() -> None:
    day = datetime(2026, 1, 1, tzinfo=UTC)
    usage = Usage(12_345, 678, 90_123, 4_567)
    asked = 0
    for model in MODELS:
        told = by_the_table(model, usage, day)
        if simple(model, day.date()):
            assert prices._tariff(model, day.date())(usage) == told, model
        else:
            asked += 1
    assert asked < len(MODELS) / 50, "nearly all have prices that are known for a day"


def test_a_new_price_holds_from_its_day_on() -> None:
    usage = Usage(1_000, 1_000, 1_000, 1_000)
    changes = 0
    for name, model in MODELS.items():
        for each in model.prices if isinstance(model.prices, list) else ():
            if isinstance(each.constraint, types.StartDateConstraint):
                for day in (each.constraint.start_date, each.constraint.start_date - timedelta(1)):
                    at = datetime.combine(day, datetime.max.time(), UTC)
                    if simple(name, day):
                        assert prices._tariff(name, day)(usage) == by_the_table(name, usage, at)
                        changes += 1
    assert changes > 10


def test_prices_that_change_by_the_hour_are_asked_for_each_time() -> None:
    by_the_hour = [
        name
        for name, model in MODELS.items()
        if isinstance(model.prices, list)
        and any(isinstance(each.constraint, types.TimeOfDateConstraint) for each in model.prices)
    ]
    assert by_the_hour
    assert not any(simple(name, date(2026, 1, 1)) for name in by_the_hour)


def test_the_table_is_asked_once_for_many_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    usage, model = Usage(1_000, 10), "anthropic:claude-sonnet-5"
    cost = Prices().cost_micros(model, usage)
    monkeypatch.delattr(genai_prices, "calc_price")
    assert Prices().cost_micros(model, usage) == cost
