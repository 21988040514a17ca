"""Budgets in a SQLite file, with no server: hold, post, refuse, sum up, and check the totals against the log."""

import asyncio
import tempfile
from decimal import Decimal
from pathlib import Path

from earmark import BudgetExceeded, Limiter, Limits, Scope, Usage
from earmark.ledger import Budget, Ledger, PriceList, Spend

PRICES = PriceList(
    {"big": {"input": "2.50", "cached_input": "1.25", "output": 10}}, version="2026-04"
)

ALICE = Scope("api_key:alice", Limits(rpm=60, tpm=100_000))
BUDGETS = (
    Budget("user:alice", Decimal("0.05"), "daily", zone="Europe/Amsterdam"),
    Budget("team:red", Decimal(100), "monthly"),
)


async def main(folder: Path) -> None:
    ledger = Ledger(f"sqlite:///{folder / 'spend.db'}")
    await ledger.create()
    async with Limiter(ledger=ledger, prices=PRICES) as limiter:
        while True:
            spend = Spend(BUDGETS, "big", estimate=Usage(4_000, 1_000))  # holds 0.02 USD
            try:
                reservation = await limiter.pre_commit(ALICE, tokens=5_000, spend=spend)
            except BudgetExceeded as refusal:
                print(f"refused: {refusal}")
                break
            async with reservation:
                await reservation.settle_success(Usage(4_000, 300, cached_input_tokens=1_000))
        for line in await ledger.summary():
            print(f"{line.day} {line.model} {line.key}: {line.requests} requests, {line.cost} USD")
        for row in await ledger.rows(limit=1):
            print(f"{row.request_id}: {row.usage.total} tokens, {row.cost} USD, {row.outcome}")
        print(f"{len(await ledger.verify())} totals are not what the log says")


with tempfile.TemporaryDirectory() as folder:
    asyncio.run(main(Path(folder)))
