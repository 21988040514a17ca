"""The two databases that every test of the ledger runs on, and what such tests share."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from earmark import Limiter, Limits, Scope, Usage
from earmark.ledger import Budget, Ledger, PriceList, Spend, UsageRow
from earmark.testing import ManualClock

NOON: Final = 1_775_044_800.0
"""2026-04-01T12:00:00Z, in seconds."""

PRICES: Final = PriceList(
    {
        "big": {"input": 2, "output": 8, "cached_input": "0.5"},
        "mini": {"input": "0.15", "output": "0.6"},
        "free": {"input": 0, "output": 0},
    },
    version="v1",
)

_numbers: Final = itertools.count()


@dataclass(frozen=True)
class Database:
    """A database with tables of its own.

    Attributes:
        url: where it is.
        prefix: what the names of its tables begin with.
    """

    url: str
    prefix: str

    @property
    def name(self) -> str:
        """`sqlite` or `postgresql`."""
        return self.url.partition("+")[0]

    def ledger(self, **options: Any) -> Ledger:
        """A ledger on it."""
        return Ledger(self.url, prefix=self.prefix, **options)


def sqlite(folder: Path) -> Database:
    """A database in a file."""
    return Database(f"sqlite+aiosqlite:///{folder}/spend{next(_numbers)}.db", "earmark_")


def postgresql(url: str) -> Database:
    """Tables of their own on a server."""
    return Database(url, f"test{next(_numbers)}_")


@asynccontextmanager
async def opened(
    database: Database, **options: Any
) -> AsyncIterator[tuple[Limiter, Ledger, ManualClock]]:
    """A limiter with a ledger, on one injected clock. A machine that is busy is no outage."""
    clock = ManualClock(NOON)
    ledger = database.ledger(clock=clock, **{"timeout": 60, **options})
    await ledger.create()
    async with Limiter(ledger=ledger, prices=PRICES) as limiter:
        yield limiter, ledger, clock


async def adds_up(ledger: Ledger) -> None:
    """Every total is the sum of the log and of what is pending."""
    assert await ledger.verify() == ()


async def wake(ledger: Ledger) -> None:
    """Have it ask its database again with the next call, and by no task of its own meanwhile."""
    for retry in tuple(ledger._retries.values()):
        retry.cancel()
        await asyncio.wait([retry])
    ledger._store._down_until = 0


async def deliver(ledger: Ledger) -> None:
    """Have the database told at once what it is owed."""
    await wake(ledger)
    assert await ledger.deliver()


async def only_row(ledger: Ledger, request_id: str | None = None) -> UsageRow:
    """The one row of a log, or of a request."""
    (row,) = await ledger.rows(request_id=request_id)
    return row


def usd(text: str | int) -> Decimal:
    """An amount of money."""
    return Decimal(text)


async def ask(limiter: Limiter, key: str, *budgets: str, usage: Usage, **options: Any) -> None:
    """One request, from admission to settlement."""
    spend = Spend(
        tuple(Budget(name, None, "total") for name in budgets), options.pop("model", "big")
    )
    reservation = await limiter.pre_commit(Scope(key, Limits(rpm=100)), spend=spend)
    await reservation.settle_success(usage, **options)
