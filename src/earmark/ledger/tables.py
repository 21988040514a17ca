"""The four tables of a ledger.

    usage    the log, append-only: what each request used and cost. A later truth is a further entry of the same
             request, which says the difference, so that sums over the log are sums over everything
    lines    one for every budget key that an entry of the log counts in
    pending  what open requests hold; a row goes when its request is resolved
    totals   posted and pending sums of a key in one interval of time: never more than the log says, and always to be
             had from it again. A key's first row is of all time; whoever has that row locked has the key. Beside the
             periods of budgets there is one for each quarter of an hour in which anything counts

Money is in nano-units, time in microseconds since the epoch, both whole numbers.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Dialect,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.types import TypeDecorator

from earmark.core.money import MAX_NANO


def written(name: str) -> str:
    """A name as it stands in a table."""
    if "\\" not in name and "\0" not in name:
        return name
    return name.replace("\\", "\\\\").replace("\0", "\\0")


class Name(TypeDecorator[str]):
    """A key, an id or a model: any text (R13). PostgreSQL's have no NUL, so that it is written as an escape."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """As it is written."""
        return None if value is None else written(value)

    def process_result_value(self, value: Any | None, dialect: Dialect) -> str | None:  # noqa: ANN401 - as its base
        """As it was."""
        if value is None or "\\" not in value:
            return value
        parts = str(value).split("\\\\")
        return "\\".join(part.replace("\\0", "\0") for part in parts)


# What SQLite counts up by itself is its INTEGER alone.
_Number = BigInteger().with_variant(Integer(), "sqlite")


class Tables:
    """The tables of one ledger, in the user's own metadata or in one of its own.

    Args:
        metadata: what they are added to, so that Alembic finds them there.
        prefix: what their names begin with.
    """

    def __init__(self, metadata: MetaData | None = None, prefix: str = "earmark_") -> None:
        self.metadata = MetaData() if metadata is None else metadata
        self.usage = self._usage(f"{prefix}usage")
        self.lines = self._lines(f"{prefix}lines")
        self.pending = self._pending(f"{prefix}pending")
        self.totals = self._totals(f"{prefix}totals")

    def _usage(self, name: str) -> Table:
        return Table(
            name,
            self.metadata,
            Column("id", _Number, primary_key=True, autoincrement=True),
            Column("request_id", Name, nullable=False),
            Column("revision", Integer, nullable=False),
            Column("reservation", Name, nullable=False),
            Column("key", Name, nullable=False),
            Column("model", Name),
            Column("input_tokens", BigInteger),
            Column("output_tokens", BigInteger),
            Column("cached_input_tokens", BigInteger),
            Column("cache_write_tokens", BigInteger),
            Column("reasoning_tokens", BigInteger),
            Column("reported_total", BigInteger),
            Column("cost", BigInteger, nullable=False),
            Column("currency", String(16), nullable=False),
            Column("price_version", Name),
            Column("outcome", String(16), nullable=False),
            Column("estimated", Boolean, nullable=False),
            Column("at_us", BigInteger, nullable=False),
            Column("resolved_us", BigInteger, nullable=False),
            Column("metadata", Text),
            UniqueConstraint("reservation", "revision", name=f"{name}_reservation"),
            Index(f"{name}_request", "request_id", "id"),
            Index(f"{name}_at", "at_us", "id"),
            Index(f"{name}_key", "key", "at_us"),
        )

    def _lines(self, name: str) -> Table:
        entry = ForeignKey(self.usage.c.id)
        return Table(
            name,
            self.metadata,
            Column("usage_id", _Number, entry, primary_key=True, autoincrement=False),
            Column("key", Name, primary_key=True),
            Column("currency", String(16), nullable=False),
            Column("at_us", BigInteger, nullable=False),
            Column("cost", BigInteger, nullable=False),
            # With the cost in it the sum of a period is read from the index alone.
            Index(f"{name}_key", "key", "currency", "at_us", "cost"),
        )

    def _pending(self, name: str) -> Table:
        return Table(
            name,
            self.metadata,
            Column("request_id", Name, primary_key=True),
            Column("reservation", Name, nullable=False),
            Column("key", Name, nullable=False),
            Column("counts_in", Text, nullable=False),  # a JSON array: only ever read with its row
            Column("model", Name),
            Column("currency", String(16), nullable=False),
            Column("amount", BigInteger, nullable=False),
            Column("adopted", Boolean, nullable=False),
            Column("price", Text),
            Column("metadata", Text),
            Column("at_us", BigInteger, nullable=False),
            Column("expires_us", BigInteger, nullable=False),
            Index(f"{name}_expires", "expires_us"),
        )

    def _totals(self, name: str) -> Table:
        # SQLite turns a sum that is too large into a fraction, which is above this bound; others refuse it themselves.
        bound = " AND ".join(f"{sum_} <= {MAX_NANO}" for sum_ in ("posted", "pending"))
        return Table(
            name,
            self.metadata,
            Column("id", _Number, primary_key=True, autoincrement=True),
            Column("key", Name, nullable=False),
            Column("currency", String(16), nullable=False),
            Column("starts_us", BigInteger, nullable=False),
            Column("ends_us", BigInteger, nullable=False),
            Column("posted", BigInteger, nullable=False),
            Column("pending", BigInteger, nullable=False),
            Column(
                "begun", BigInteger, nullable=False
            ),  # in a first row: how many others the key has
            CheckConstraint(bound, name=f"{name}_bound"),
            # Of a key's many periods those that have not ended come last, and are found without the others.
            UniqueConstraint("key", "currency", "ends_us", "starts_us", name=f"{name}_interval"),
        )
