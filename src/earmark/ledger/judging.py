"""Whether a charge fits its budgets: pure, of the sums as they are with its amount in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from earmark.budgets import Budget
from earmark.core.money import decimal_of
from earmark.errors import BudgetExceeded
from earmark.ledger.charge import Charge
from earmark.ledger.periods import END, Interval, interval_of, moment
from earmark.limits import MICROSECONDS


class Sums(NamedTuple):
    """What a key has in one interval, in nano-units: what is posted, and what open requests hold."""

    posted: int
    pending: int


def judge(charge: Charge, sums: Mapping[tuple[str, Interval], Sums]) -> None:
    """Refuse a charge iff a budget of it has no room: `posted + pending + asked > limit`, or nothing is left.

    Args:
        charge: what is asked.
        sums: by key and interval, what is counted once the charge is.

    Raises:
        BudgetExceeded: of the budget that refuses the longest.
    """
    refusing: list[tuple[int, Budget, Sums]] = []
    for budget in charge.budgets:
        if budget.limit_nano is None:
            continue
        interval = interval_of(budget, charge.at)
        found = sums[budget.key, interval]
        total = found.posted + found.pending
        if total > budget.limit_nano or total - charge.amount >= budget.limit_nano:
            refusing.append((interval.ends, budget, found))
    if not refusing:
        return
    ends, budget, found = max(refusing, key=lambda one: one[0])
    raise BudgetExceeded(
        budget,
        spent=decimal_of(found.posted),
        pending=decimal_of(found.pending - charge.amount),
        asked=decimal_of(charge.amount),
        until=None if ends == END else (moment(ends), (ends - charge.at) / MICROSECONDS),
    )
