"""What tokens cost: a price, and what a table of prices is.

Rates are exact, in units of a currency per million tokens. What one exchange costs is a sum of exact products, rounded
up to the nano-unit once, so that nothing used is free (B59). A price is written down with the reservation that was made
under it: a table that changes meanwhile changes nothing (its version is stamped, DESIGN's Money).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from math import ceil
from typing import Any, Final, NamedTuple, Protocol, Self

from earmark.budgets import check_currency
from earmark.core.money import MAX_NANO, fraction_of
from earmark.limits import check_key
from earmark.usage import Usage

_put: Final = object.__setattr__  # how a frozen value is filled

_NANO_PER_RATE: Final = 1_000
"""Nano-units of one token at a rate of one unit per million tokens."""


class Cost(NamedTuple):
    """What a usage costs.

    Attributes:
        nano: in nano-units; of an incomplete one at least this.
        complete: the usage says everything that has a price.
    """

    nano: int
    complete: bool


@dataclass(frozen=True, slots=True)
class Rates:
    """Units of a currency per million tokens; `request` is per request.

    Args:
        input: what was read, cached and cache-write tokens apart.
        output: what was generated, reasoning apart.
        cached_input: what was read from a cache; by default as `input`.
        cache_write: what was written to a cache; by default as `input`.
        reasoning: by default as `output`.
        request: the request itself, if it used anything.

    Raises:
        ValueError: a rate is no Decimal (or int), not finite or negative.
    """

    input: Decimal
    output: Decimal
    cached_input: Decimal | None = None
    cache_write: Decimal | None = None
    reasoning: Decimal | None = None
    request: Decimal = Decimal(0)

    def __post_init__(self) -> None:
        for rate in fields(self):
            value = getattr(self, rate.name)
            if value is not None:
                fraction_of(rate.name, value)
                _put(self, rate.name, Decimal(value))

    def nano(self, usage: Usage) -> Fraction:
        """What the known parts of a usage cost, in nano-units."""
        read, generated = usage.input_tokens or 0, usage.output_tokens or 0
        cached = usage.cached_input_tokens or 0
        written = usage.cache_write_tokens or 0
        reasoning = usage.reasoning_tokens or 0
        if usage.input_tokens is not None:  # parts cannot exceed their known whole
            cached = min(cached, read)
            written = min(written, read - cached)
            read -= cached + written
        if usage.output_tokens is not None:
            reasoning = min(reasoning, generated)
            generated -= reasoning
        parts = (
            (read, self.input),
            (cached, self.input if self.cached_input is None else self.cached_input),
            (written, self.input if self.cache_write is None else self.cache_write),
            (generated, self.output),
            (reasoning, self.output if self.reasoning is None else self.reasoning),
            (1_000_000, self.request),
        )
        total = sum((tokens * Fraction(rate) for tokens, rate in parts if tokens), Fraction(0))
        return total * _NANO_PER_RATE


@dataclass(frozen=True, slots=True)
class Price:
    """What a model costs.

    Args:
        rates: what tokens cost.
        version: which edition of which table says so; it stands in the usage row.
        currency: what the rates are in.
        long: a number of input tokens, and the rates of a request that reads more than that; of several the one
            with the largest number counts.

    Raises:
        ValueError: a bad version or currency.
    """

    rates: Rates
    version: str
    currency: str = "USD"
    long: tuple[tuple[int, Rates], ...] = ()

    def __post_init__(self) -> None:
        check_key("version", self.version)
        check_currency(self.currency)
        _put(self, "long", tuple(sorted(self.long, key=lambda step: step[0])))

    def cost(self, usage: Usage) -> Cost:
        """What a usage costs, or at least: where it has unknown parts, what is known of it."""
        if usage.total == 0:
            return Cost(
                0, complete=True
            )  # nothing was used: a request that was refused unbilled (B26, B40)
        rates = self.rates
        for above, longer in self.long:
            if (usage.input_tokens or 0) > above:
                rates = longer
        complete = usage.input_tokens is not None and usage.output_tokens is not None
        return Cost(min(ceil(rates.nano(usage)), MAX_NANO), complete)

    def write(self) -> str:
        """As JSON, for a row of a database."""
        steps = [[above, _written(rates)] for above, rates in self.long]
        return json.dumps([self.version, self.currency, _written(self.rates), steps])

    @classmethod
    def read(cls, text: str) -> Self:
        """The price that `write` has written."""
        version, currency, rates, steps = json.loads(text)
        return cls(_read(rates), version, currency, tuple((n, _read(more)) for n, more in steps))


def _written(rates: Rates) -> dict[str, str]:
    values = {rate.name: getattr(rates, rate.name) for rate in fields(rates)}
    return {name: str(value) for name, value in values.items() if value is not None}


def _read(rates: Mapping[str, Any]) -> Rates:
    return Rates(**{name: Decimal(value) for name, value in rates.items()})


class PriceTable(Protocol):
    """Where prices come from."""

    def price(self, model: str, at: datetime) -> Price | None:
        """What a model costs at a moment; None: it is not known, and no default was stated."""
        ...
