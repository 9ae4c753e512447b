"""What a model call costs: prices of your own first, then the table of `genai-prices`.

The table is the one that was installed: nothing here asks the network, so a new model has a price
after an upgrade of that package, or with an entry in REJOINDER_PRICES. A model without a price has
an unknown cost, which is not zero. What a call took is counted in `models/machine/history.py`.
"""

import json
from collections.abc import Mapping
from decimal import Decimal
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

import genai_prices
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from rejoinder.core.errors import Rejected
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
        if (own := self._find(model)) is not None:
            return micros(own.of(usage))
        return _by_the_table(model, usage)

    def _find(self, model: str) -> Price | None:
        if model in self._own:
            return self._own[model]
        matching = (name for name in self._own if fnmatchcase(model, name))
        return next((self._own[name] for name in matching), None)


def _by_the_table(model: str, usage: Usage) -> int | None:
    provider, _, name = model.partition(":")
    read, write = usage.cache_read_tokens or 0, usage.cache_write_tokens or 0
    counted = genai_prices.Usage(
        # The table's input is everything that went in; ours is what no cache had to do with.
        input_tokens=(usage.input_tokens or 0) + read + write,
        cache_read_tokens=read,
        cache_write_tokens=write,
        output_tokens=usage.output_tokens or 0,
    )
    try:
        found = genai_prices.calc_price(counted, name, provider_id=provider)
    except (LookupError, ValueError):  # an unknown model, or counts that contradict each other
        return None
    return micros(found.total_price)
