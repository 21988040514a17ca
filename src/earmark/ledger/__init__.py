"""Money: budgets, prices and the log of what was spent, kept in SQL (the extra `earmark[ledger]`).

Names resolve on first use: SQLAlchemy is loaded where a `Ledger` is.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from earmark.budgets import Budget, Spend
    from earmark.ledger.answers import Drift, LedgerHealth, Standing, SummaryLine, UsageRow
    from earmark.ledger.ledger import Ledger
    from earmark.ledger.pricelists import GenaiPrices, LiteLLMPrices, PriceList
    from earmark.ledger.tables import Tables
    from earmark.prices import Price, PriceTable, Rates

_HOMES: Final = {
    "Budget": "budgets",
    "Drift": "ledger.answers",
    "GenaiPrices": "ledger.pricelists",
    "Ledger": "ledger.ledger",
    "LedgerHealth": "ledger.answers",
    "LiteLLMPrices": "ledger.pricelists",
    "Price": "prices",
    "PriceList": "ledger.pricelists",
    "PriceTable": "prices",
    "Rates": "prices",
    "Spend": "budgets",
    "Standing": "ledger.answers",
    "SummaryLine": "ledger.answers",
    "Tables": "ledger.tables",
    "UsageRow": "ledger.answers",
}

__all__ = [
    "Budget",
    "Drift",
    "GenaiPrices",
    "Ledger",
    "LedgerHealth",
    "LiteLLMPrices",
    "Price",
    "PriceList",
    "PriceTable",
    "Rates",
    "Spend",
    "Standing",
    "SummaryLine",
    "Tables",
    "UsageRow",
]

if not TYPE_CHECKING:  # a type checker knows the names, and finds a misspelt one

    def __getattr__(name: str) -> object:
        home = _HOMES.get(name)
        if home is None:
            msg = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(msg)
        try:
            value = getattr(import_module(f"earmark.{home}"), name)
        except ModuleNotFoundError as error:
            error.add_note("The ledger is an extra: pip install 'earmark[ledger]'")
            raise
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
