"""What the demo's model costs, and what follows from it."""

from __future__ import annotations

from decimal import Decimal
from typing import Final

from earmark.ledger import Budget, PriceList

from .provider import MODEL

PRICES: Final = PriceList({MODEL: {"input": 2, "output": 8}}, version="demo")
"""In USD per million tokens."""

COST: Final = 10 * 2 + 20 * 8
"""Of an answer in one piece, in millionths of a USD. Before it is there, 10 * 2 + 190 * 8 are held for it."""

BUDGET: Final = Budget("api_key:dave", Decimal("0.0017"), "daily")
