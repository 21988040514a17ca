"""What a ledger answers: rows of its log, lines of a summary, what a budget stands at, and what does not add up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from earmark.budgets import Budget
from earmark.core.money import EXACT
from earmark.usage import Usage


@dataclass(frozen=True, slots=True)
class UsageRow:
    """One entry of the log.

    Attributes:
        id: its number; `Ledger.rows` goes on after it.
        request_id: whose it is: what its caller has called it.
        reservation: what the library has called it, which no other request ever is.
        revision: 0 for what the request was posted with, and 1, 2, … for a later truth, whose `cost` is the
            difference.
        key: the first scope's key of the request, else the first budget's.
        budget_keys: every budget key that it counts in, sorted.
        model: the model that answered, else the one that was asked for, or None.
        usage: its tokens; what nobody reported is None.
        cost: what this entry adds, in `currency`.
        currency: such as "USD".
        price_version: of the price list that was in force at its admission, or None.
        outcome: `settled`, `closed`, `abandoned` (its holder went away), `expired` (and was never heard of again),
            `cancelled` (what had expired was given back after all) or `corrected`. An abandoned or expired one is
            unsettled: it costs what it held.
        estimated: the cost is not what was reported: what was held, or an estimate, has a part in it.
        at: when it was admitted, in UTC: by this its period is chosen.
        resolved_at: when this entry was made, in UTC.
        metadata: what its `Spend` said besides, or None.
    """

    id: int
    request_id: str
    reservation: str
    revision: int
    key: str
    budget_keys: tuple[str, ...]
    model: str | None
    usage: Usage
    cost: Decimal
    currency: str
    price_version: str | None
    outcome: str
    estimated: bool
    at: datetime
    resolved_at: datetime
    metadata: Mapping[str, Any] | None

    @property
    def unsettled(self) -> bool:
        """Whether nobody has said what it used."""
        return self.outcome in {"abandoned", "expired"}


@dataclass(frozen=True, slots=True)
class SummaryLine:
    """The sum of a group of requests.

    Attributes:
        day: the local day of their admission; None unless grouped by it.
        model: their model; None unless grouped by it, or where none was named.
        key: whose they are; None unless grouped by it.
        currency: what the cost is in: different ones are never added up.
        requests: how many.
        cost: what they cost.
        input_tokens: what they read, where it was reported; None where it never was.
        output_tokens: what they generated, likewise.
    """

    day: date | None
    model: str | None
    key: str | None
    currency: str
    requests: int
    cost: Decimal
    input_tokens: int | None
    output_tokens: int | None


@dataclass(frozen=True, slots=True)
class Standing:
    """A budget in its current period.

    Attributes:
        budget: the budget.
        spent: what is posted.
        pending: what open requests hold.
        resets_at: when the next period begins, in UTC; None: never.
    """

    budget: Budget
    spent: Decimal
    pending: Decimal
    resets_at: datetime | None

    @property
    def remaining(self) -> Decimal | None:
        """What may still be spent, never negative; None: the budget has no limit."""
        if self.budget.limit is None:
            return None
        taken = EXACT.add(self.spent, self.pending)
        return max(EXACT.subtract(self.budget.limit, taken), Decimal(0))


@dataclass(frozen=True, slots=True)
class Drift:
    """A running total that is not what the log says.

    Attributes:
        key: whose total.
        currency: what it is in.
        starts: the beginning of its period, in UTC; None: it has none.
        ends: its end, in UTC; None: it has none.
        posted: the total.
        logged: what the log says.
        pending: the total that open requests hold.
        held: what they say.
    """

    key: str
    currency: str
    starts: datetime | None
    ends: datetime | None
    posted: Decimal
    logged: Decimal
    pending: Decimal
    held: Decimal


@dataclass(frozen=True, slots=True)
class LedgerHealth:
    """A ledger at one moment.

    Attributes:
        available: its database could be reached when it was last asked.
        reason: why not, or None.
        owed: resolutions that are kept for it.
        lost: resolutions that could not be kept, or were refused when they came.
        allowed: what was admitted during this outage without it.
    """

    available: bool
    reason: str | None
    owed: int
    lost: int
    allowed: Decimal
