"""What type checkers see of money: as public.py, never run."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import assert_type

from earmark import BudgetExceeded, Limiter, Scope, UnknownPrice, Usage
from earmark.ledger import (
    Budget,
    Drift,
    GenaiPrices,
    Ledger,
    LedgerHealth,
    LiteLLMPrices,
    Price,
    PriceList,
    PriceTable,
    Rates,
    Spend,
    Standing,
    SummaryLine,
    Tables,
    UsageRow,
)


def prices(at: datetime, unknown: UnknownPrice) -> None:
    """Each price list is a table; a price is made of rates."""
    tables: list[PriceTable] = [
        PriceList({"big": {"input": 2, "output": 8}}),
        LiteLLMPrices({}),
        GenaiPrices(),
    ]
    assert_type(tables[0].price("big", at), Price | None)
    price = Price(Rates(Decimal(2), Decimal(8)), "2026-11")
    assert_type(price.rates.input, Decimal)
    assert_type(price.currency, str)
    assert_type(unknown.model, str)
    Price(Rates(2.5, 8), "2026-11")  # type: ignore[arg-type]


async def spend(scope: Scope, at: datetime) -> None:
    """Budgets and estimates go with a request; what was spent is a Decimal."""
    ledger = Ledger("sqlite+aiosqlite://")
    budget = Budget("team", Decimal(100), "monthly", zone="Europe/Berlin")
    await ledger.create()
    async with Limiter(ledger=ledger, prices=PriceList({})) as limiter:
        try:
            reservation = await limiter.pre_commit(
                scope, spend=Spend((budget,), "big", Usage(input_tokens=900, output_tokens=100))
            )
        except BudgetExceeded as refused:
            assert_type(refused.budget, Budget)
            assert_type(refused.spent, Decimal)
            assert_type(refused.resets_at, datetime | None)
            return
        await limiter.settle_success(reservation, 5, cost=Decimal("0.01"), model="big")
        await limiter.settle_success(reservation, 5, cost=0.01)  # type: ignore[arg-type]
    assert_type(await ledger.spent(budget), Decimal)
    assert_type(await ledger.standing(budget), Standing)
    assert_type(await ledger.rows("team", since=at), tuple[UsageRow, ...])
    assert_type(await ledger.summary("team", by=["day"]), tuple[SummaryLine, ...])
    assert_type(await ledger.verify(), tuple[Drift, ...])
    assert_type(await ledger.correct("a", Decimal(1)), bool)
    assert_type(ledger.health(), LedgerHealth)
    assert_type(ledger.tables, Tables)
    Budget("team", Decimal(100), "fortnightly")  # type: ignore[arg-type]
    Budget("team", 99.5, "monthly")  # type: ignore[arg-type]
