"""What may be spent: budgets, and what one request means to spend of them.

Both are values: frozen, checked when they are made. A budget's money is counted under its key: every cost that
names the key counts in each of its periods, whichever budget the request has passed (B58, C53).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, Literal, get_args
from zoneinfo import ZoneInfo

from earmark.core.money import limit_of, nano_of
from earmark.limits import check_key
from earmark.usage import Usage

Period = Literal["daily", "weekly", "monthly", "total"]

_put: Final = object.__setattr__  # how a frozen value is filled


@dataclass(frozen=True, slots=True)
class Budget:
    """At most `limit` of a currency per period, by the calendar of a zone.

    Args:
        key: whose money it is, such as "team:red"; any text up to 1,024 bytes.
        limit: a Decimal (or int) in the currency's units, in whole micro-units; None is unlimited, and still
            counted; 0 spends nothing.
        period: `daily`, `weekly` (from Monday), `monthly`, each from the first instant of the zone's local day; or
            `total`, which never resets.
        zone: a name of the time zone database.
        currency: what the limit and every cost under it is in.

    Raises:
        ValueError: a bad key, limit, period, zone or currency.
    """

    key: str
    limit: Decimal | None
    period: Period
    zone: str = "UTC"
    currency: str = "USD"

    limit_nano: int | None = field(init=False, compare=False, repr=False)
    """The limit in whole nano-units, or None."""

    def __post_init__(self) -> None:
        _put(self, "key", check_key("key", self.key))
        _put(self, "limit_nano", None if self.limit is None else limit_of("limit", self.limit))
        _put(self, "limit", None if self.limit is None else Decimal(self.limit))
        if self.period not in get_args(Period):
            msg = f"period must be one of {', '.join(get_args(Period))}, not {self.period!r}"
            raise ValueError(msg)
        check_zone(self.zone)
        check_currency(self.currency)


@dataclass(frozen=True, slots=True)
class Spend:
    """What one request means to spend.

    Args:
        budgets: every one has to have room, and every key counts what it costs; none: it is only logged.
        model: the model that is asked for, whose price counts.
        estimate: what it may cost, which is held until it is known: a `Usage`, at the price of the model; a
            Decimal, in the currency of the budgets; None holds nothing, and is admitted while anything is left.
        metadata: what else the usage row is to say: a mapping that JSON can express.

    Raises:
        ValueError: two budgets alike, or of different currencies; an estimate that is no such thing; metadata that
            is no such mapping; a bad model.
    """

    budgets: tuple[Budget, ...]
    model: str | None = None
    estimate: Usage | Decimal | None = None
    metadata: Mapping[str, Any] | None = field(default=None, compare=False)

    estimate_nano: int | None = field(init=False, compare=False, repr=False)
    """The estimate in nano-units where it is a Decimal; None: it follows from the price, or there is none."""
    metadata_text: str | None = field(init=False, compare=False, repr=False)
    """The metadata as JSON."""

    def __post_init__(self) -> None:
        _put(self, "budgets", _budgets(self.budgets))
        if self.model is not None:
            _put(self, "model", check_key("model", self.model))
        money = None
        if not isinstance(self.estimate, Usage) and self.estimate is not None:
            money = nano_of("estimate", self.estimate)
        _put(self, "estimate_nano", money)
        _put(self, "metadata_text", _json(self.metadata))

    @property
    def currency(self) -> str | None:
        """That of the budgets; None where there is none."""
        return self.budgets[0].currency if self.budgets else None


def _budgets(budgets: Iterable[Budget]) -> tuple[Budget, ...]:
    if isinstance(budgets, Budget):
        budgets = (budgets,)
    budgets = tuple(budgets)
    for budget in budgets:
        if not isinstance(budget, Budget):
            msg = f"expected a Budget, not {budget!r}"
            raise TypeError(msg)
    if len({(budget.key, budget.period, budget.zone) for budget in budgets}) < len(budgets):
        msg = f"two budgets of one key, period and zone in one request: {budgets}"
        raise ValueError(msg)
    if len({budget.currency for budget in budgets}) > 1:
        msg = f"the budgets of one request are in one currency, not in several: {budgets}"
        raise ValueError(msg)
    return budgets


def _json(metadata: Mapping[str, Any] | None) -> str | None:
    if metadata is None:
        return None
    if not isinstance(metadata, Mapping):
        msg = f"metadata must be a mapping, not {metadata!r}"
        raise ValueError(msg)  # noqa: TRY004 - one error for whatever cannot be logged
    try:
        return json.dumps(dict(metadata), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        msg = f"metadata must be what JSON can express: {error}"
        raise ValueError(msg) from error


def check_zone(zone: object) -> str:
    """Return the name of a time zone.

    Raises:
        ValueError: there is none of this name.
    """
    if isinstance(zone, str) and zone:
        try:
            ZoneInfo(zone)
        except (LookupError, ValueError, OSError):
            pass
        else:
            return zone
    msg = f"zone must be a name of the time zone database, such as 'Europe/Amsterdam', not {zone!r}"
    raise ValueError(msg)


def check_currency(currency: object) -> str:
    """Return the name of a currency.

    Raises:
        ValueError: not one to sixteen letters, digits, `_` or `-`.
    """
    if isinstance(currency, str) and re.fullmatch(r"[A-Za-z0-9_-]{1,16}", currency, re.ASCII):
        return currency
    msg = f"currency must be a name such as 'USD', not {currency!r}"
    raise ValueError(msg)
