"""What a transaction does to the tables: four changes, each followed by the totals of what it has changed.

The order of locks is the same everywhere, so that none waits for another in a circle: first the request's own rows (in
`pending`, then in `usage`), then the first rows of its keys in the order of their ids. Whoever has a key's first row
has every row of the key.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Dialect
from sqlalchemy.ext.asyncio import AsyncConnection

from earmark.ledger.counting import Count, Counting, Totals
from earmark.ledger.tables import Tables


class Changes(ABC):
    """The changes of one ledger's tables, in the words of one kind of database.

    Each returns the totals that it has counted in, as they are since; or None: it has changed nothing.

    Args:
        tables: the tables.
        dialect: that of the database.
        counting: the totals.
    """

    def __init__(self, tables: Tables, dialect: Dialect, counting: Counting) -> None:
        self.tables = tables
        self.dialect = dialect
        self.counting = counting

    @abstractmethod
    async def put(
        self, connection: AsyncConnection, row: Mapping[str, Any], count: Count
    ) -> Totals | None:
        """Make something pending; None: its request id is pending already."""

    @abstractmethod
    async def take(
        self, connection: AsyncConnection, name: str, who: str, count: Count
    ) -> Totals | None:
        """Take what is pending; None: it is not."""

    @abstractmethod
    async def post(
        self,
        connection: AsyncConnection,
        name: str,
        who: str,
        entry: Mapping[str, Any],
        count: Count,
    ) -> Totals | None:
        """Turn what is pending into an entry of the log; None: it is not pending."""

    @abstractmethod
    async def log(
        self, connection: AsyncConnection, entry: Mapping[str, Any], count: Count
    ) -> Totals | None:
        """Add an entry to the log; None: there is one of this reservation and revision."""
