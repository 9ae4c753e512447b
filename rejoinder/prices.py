"""What a model call costs: prices of your own first, then the table of `genai-prices`.

The table is the one that was installed: nothing here asks the network, so a new model has a price
after an upgrade of that package, or with an entry in REJOINDER_PRICES. A model without a price has
an unknown cost, which is not zero. What a call took is counted in `models/machine/history.py`.
"""

import json
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, TypeAlias

import genai_prices
from genai_prices import types
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from rejoinder.core.errors import Rejected
from rejoinder.core.limits import MOST_CALL_MICROS
from rejoinder.core.messages import Usage
from rejoinder.core.money import micros

MILLION = 1_000_000
_Dollars = Annotated[Decimal, Field(ge=0, allow_inf_nan=False)]


class Price(BaseModel):
    """Dollars per million tokens. Where a cache has no price of its own, it is that of input."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    input: _Dollars
    output: _Dollars
    cache_read: _Dollars | None = None
    cache_write: _Dollars | None = None

    def of(self, usage: Usage) -> Decimal:
        """What this usage costs, in dollars."""
        read = self.input if self.cache_read is None else self.cache_read
        write = self.input if self.cache_write is None else self.cache_write
        return (
            self.input * (usage.input_tokens or 0)
            + self.output * (usage.output_tokens or 0)
            + read * (usage.cache_read_tokens or 0)
            + write * (usage.cache_write_tokens or 0)
        ) / MILLION


_PRICES = TypeAdapter(dict[str, Price])
_Tariff: TypeAlias = Callable[[Usage], Decimal | None]
"""What a usage costs, in dollars, if that is known."""


class Prices:
    """All prices that a process knows."""

    def __init__(self, own: Mapping[str, Price] | None = None) -> None:
        """Let these come before the table's, by `provider:model`; `*` stands for anything."""
        self._own = dict(own or {})

    @classmethod
    def load(cls, setting: str) -> "Prices":
        """Read REJOINDER_PRICES: JSON, or the path of a file with JSON."""
        if not setting:
            return cls()
        try:
            text = setting
            if not setting.startswith("{"):
                text = Path(setting).read_text(encoding="utf-8")
            return cls(_PRICES.validate_python(json.loads(text)))
        except (OSError, ValueError) as error:
            detail = error.errors()[0] if isinstance(error, ValidationError) else error
            raise Rejected(
                f"REJOINDER_PRICES cannot be read: {detail}",
                'give JSON, or a file with it, e.g. {"provider:model": {"input": 3, "output": 15}}'
                " in dollars per million tokens",
            ) from error

    def cost_micros(self, model: str, usage: Usage) -> int | None:
        """What a call of `provider:model` cost, in millionths of a dollar; None if unknown."""
        if usage.input_tokens is None and usage.output_tokens is None:
            return None
        own = self._find(model)
        cost = _by_the_table(model, usage) if own is None else own.of(usage)
        return None if cost is None else min(micros(cost), MOST_CALL_MICROS)

    def _find(self, model: str) -> Price | None:
        if model in self._own:
            return self._own[model]
        matching = (name for name in self._own if fnmatchcase(model, name))
        return next((self._own[name] for name in matching), None)


def _by_the_table(model: str, usage: Usage) -> Decimal | None:
    return _tariff(model, datetime.now(UTC).date())(usage)


@lru_cache(maxsize=1000)
def _tariff(model: str, day: date) -> _Tariff:
    """What the table says of a model on a day. Asking it anew for each call takes far longer."""
    try:
        found = _found(model, Usage(), datetime.combine(day, time(), UTC))
    except (LookupError, ValueError):
        return lambda _: None
    listed = found.model.prices
    if isinstance(listed, list) and any(map(_by_the_clock, listed)):
        return partial(_ask, model)
    priced = {name: each for name, each in vars(found.model_price).items() if each is not None}
    tiers = (each.tiers for each in priced.values() if isinstance(each, types.TieredPrices))
    sizes = sorted({tier.start for each in tiers for tier in each})
    prices = [_price(priced, size) for size in (0, *(size + 1 for size in sizes))]
    simple = [each for each in prices if each is not None]
    return partial(_of, sizes, simple) if simple == prices else partial(_ask, model)


def _of(sizes: Sequence[int], prices: Sequence[Price], usage: Usage) -> Decimal:
    """By the price that holds for a prompt of this size."""
    return prices[bisect_left(sizes, usage.prompt_tokens or 0)].of(usage)


def _ask(model: str, usage: Usage) -> Decimal | None:
    try:
        return _found(model, usage).total_price
    except (LookupError, ValueError):  # an unknown model, or counts that contradict each other
        return None


def _found(model: str, usage: Usage, at: datetime | None = None) -> types.PriceCalculation:
    provider, _, name = model.partition(":")
    counted = genai_prices.Usage(**_counts(usage))
    return genai_prices.calc_price(counted, name, provider_id=provider, genai_request_timestamp=at)


def _counts(usage: Usage) -> dict[str, int]:
    read, write = usage.cache_read_tokens or 0, usage.cache_write_tokens or 0
    return {
        # The table's input is everything that went in; ours is what no cache had to do with.
        "input_tokens": (usage.input_tokens or 0) + read + write,
        "cache_read_tokens": read,
        "cache_write_tokens": write,
        "output_tokens": usage.output_tokens or 0,
    }


def _by_the_clock(price: types.ConditionalPrice) -> bool:
    return not isinstance(price.constraint, types.StartDateConstraint | None)


def _price(priced: Mapping[str, Decimal | types.TieredPrices], size: int) -> Price | None:
    """The price per token in prompts of this size; None if it is not made of tokens alone."""
    flat = types.ModelPrice(**{name: _at(each, size) for name, each in priced.items()})

    def ask(**tokens: int) -> Decimal:
        counted = genai_prices.Usage(**_counts(Usage(**tokens)))
        return flat.calc_price(counted)["total_price"]

    kinds = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
    try:
        each = [ask(**{kind: MILLION}) for kind in kinds]
        if ask() or ask(**dict.fromkeys(kinds, MILLION)) != sum(each):
            return None
    except ValueError:  # it is paid by something that we do not count
        return None
    return Price(input=each[0], output=each[1], cache_read=each[2], cache_write=each[3])


def _at(price: Decimal | types.TieredPrices, size: int) -> Decimal:
    if isinstance(price, Decimal):
        return price
    begun = (tier.price for tier in reversed(price.tiers) if size > tier.start)
    return next(begun, price.base)
