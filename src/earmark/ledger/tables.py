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

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Connection,
    Dialect,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    func,
    select,
)
from sqlalchemy.types import TypeDecorator, TypeEngine

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


_MAKING: Final = int.from_bytes(b"earmark")
"""The lock of whoever makes tables, by a number."""

_NO_OTHERS: Final[Mapping[str | None, str | None]] = {}


class Tables:
    """The tables of one ledger, in the user's own metadata or in one of its own.

    They are there twice: in `metadata` for whoever makes or migrates them, in types of SQLAlchemy's own alone, so that
    Alembic can write them down; and beside it for statements, where a text may have a NUL.

    Args:
        metadata: what they are added to, unless they are in it already.
        prefix: what their names begin with.
        schemas: by the metadata's schema, what an engine calls it instead (its `schema_translate_map`).
    """

    def __init__(
        self,
        metadata: MetaData | None = None,
        prefix: str = "earmark_",
        *,
        schemas: Mapping[str | None, str | None] = _NO_OTHERS,
    ) -> None:
        self.metadata = MetaData() if metadata is None else metadata
        schema = self.metadata.schema
        self.usage, self.lines, self.pending, self.totals = _tables(
            MetaData(schema=schemas.get(schema, schema)), prefix, Name
        )
        names = [table.name for table in (self.usage, self.lines, self.pending, self.totals)]
        place = "" if schema is None else f"{schema}."
        if f"{place}{names[0]}" not in self.metadata.tables:
            _tables(self.metadata, prefix, Text)
        self.described = [self.metadata.tables[f"{place}{name}"] for name in names]

    def create(self, connection: Connection) -> None:
        """Make those that are not there yet; of processes that begin together one does, and the others wait for it."""
        if connection.dialect.name == "postgresql":  # SQLite has one writer anyway
            connection.execute(select(func.pg_advisory_xact_lock(_MAKING)))
        self.metadata.create_all(connection, tables=self.described)


def _tables(
    metadata: MetaData, prefix: str, text: type[TypeEngine[str]]
) -> tuple[Table, Table, Table, Table]:
    usage = _usage(metadata, f"{prefix}usage", text)
    lines = _lines(metadata, f"{prefix}lines", text, usage)
    pending = _pending(metadata, f"{prefix}pending", text)
    return usage, lines, pending, _totals(metadata, f"{prefix}totals", text)


def _usage(metadata: MetaData, name: str, text: type[TypeEngine[str]]) -> Table:
    return Table(
        name,
        metadata,
        Column("id", _Number, primary_key=True, autoincrement=True),
        Column("request_id", text, nullable=False),
        Column("revision", Integer, nullable=False),
        Column("reservation", text, nullable=False),
        Column("key", text, nullable=False),
        Column("model", text),
        Column("input_tokens", BigInteger),
        Column("output_tokens", BigInteger),
        Column("cached_input_tokens", BigInteger),
        Column("cache_write_tokens", BigInteger),
        Column("reasoning_tokens", BigInteger),
        Column("reported_total", BigInteger),
        Column("cost", BigInteger, nullable=False),
        Column("currency", String(16), nullable=False),
        Column("price_version", text),
        Column("price", Text),  # of what has expired: its holder may turn up, and be charged by it
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


def _lines(metadata: MetaData, name: str, text: type[TypeEngine[str]], usage: Table) -> Table:
    entry = ForeignKey(usage.c.id)
    return Table(
        name,
        metadata,
        Column("usage_id", _Number, entry, primary_key=True, autoincrement=False),
        Column("key", text, primary_key=True),
        Column("currency", String(16), nullable=False),
        Column("at_us", BigInteger, nullable=False),
        Column("cost", BigInteger, nullable=False),
        # With the cost in it the sum of a period is read from the index alone.
        Index(f"{name}_key", "key", "currency", "at_us", "cost"),
    )


def _pending(metadata: MetaData, name: str, text: type[TypeEngine[str]]) -> Table:
    return Table(
        name,
        metadata,
        Column("request_id", text, primary_key=True),
        Column("reservation", text, nullable=False),
        Column("key", text, nullable=False),
        Column("counts_in", Text, nullable=False),  # a JSON array: only ever read with its row
        Column("model", text),
        Column("currency", String(16), nullable=False),
        Column("amount", BigInteger, nullable=False),
        Column("askers", Text, nullable=False),  # names, with a blank between
        Column("price", Text),
        Column("metadata", Text),
        Column("at_us", BigInteger, nullable=False),
        Column("expires_us", BigInteger, nullable=False),
        Index(f"{name}_expires", "expires_us"),
    )


def _totals(metadata: MetaData, name: str, text: type[TypeEngine[str]]) -> Table:
    # SQLite turns a sum that is too large into a fraction, which is above this bound; others refuse it themselves.
    bound = " AND ".join(f"{sum_} <= {MAX_NANO}" for sum_ in ("posted", "pending"))
    return Table(
        name,
        metadata,
        Column("id", _Number, primary_key=True, autoincrement=True),
        Column("key", text, nullable=False),
        Column("currency", String(16), nullable=False),
        Column("starts_us", BigInteger, nullable=False),
        Column("ends_us", BigInteger, nullable=False),
        Column("posted", BigInteger, nullable=False),
        Column("pending", BigInteger, nullable=False),
        Column("begun", BigInteger, nullable=False),  # in a first row: how many others the key has
        CheckConstraint(bound, name=f"{name}_bound"),
        # Of a key's many periods those that have not ended come last, and are found without the others.
        UniqueConstraint("key", "currency", "ends_us", "starts_us", name=f"{name}_interval"),
    )
