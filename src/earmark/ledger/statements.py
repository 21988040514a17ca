"""Statements of SQLAlchemy's that are compiled once, since those of a ledger are few, and run for every request.

PostgreSQL is sent them through the engine. SQLite is by its driver, of which every word through the engine is a trip
to a thread and back: a cursor, the statement, its rows, the cursor's end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from sqlalchemy import BindParameter, Dialect, SelectBase, Table, bindparam
from sqlalchemy.engine import URL
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.dml import UpdateBase

Rows: TypeAlias = Sequence[Sequence[Any]]

_Change: TypeAlias = Callable[[Any], Any]


def dialect_of(url: URL) -> Dialect:
    """In what words a database is spoken to."""
    options = {"paramstyle": "named"} if url.get_backend_name() == "sqlite" else {}
    return url.get_dialect()(**options)


def given(name: str, type_: Any = None) -> BindParameter[Any]:  # noqa: ANN401 - a type of SQLAlchemy's
    """A value of a statement, which it is given each time."""
    return bindparam(name, type_=type_)


def row_of(table: Table, prefix: str) -> dict[str, BindParameter[Any]]:
    """Every column of a table but a number that it counts up itself, as values whose names are no column's."""
    return {
        column.name: given(f"{prefix}_{column.name}", column.type)
        for column in table.c
        if column is not table.autoincrement_column
    }


def prefixed(prefix: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """A row, as the values of such a statement."""
    return {f"{prefix}_{name}": value for name, value in row.items()}


class Statement:
    """One statement, as text.

    Args:
        core: the statement, each of its values is `given`.
        dialect: whose words it is put into.
    """

    def __init__(self, core: SelectBase | UpdateBase, dialect: Dialect) -> None:
        compiled: Any = core.compile(dialect=dialect)
        self._text: Final = str(compiled)
        self._fixed: Final = {
            name: bind.value for name, bind in compiled.binds.items() if not bind.required
        }
        self._order: Final[Sequence[str] | None] = compiled.positiontup
        self._writers: Final = _changes(
            {name: bind.type.bind_processor(dialect) for name, bind in compiled.binds.items()}
        )
        columns = core.exported_columns
        self._readers: Final = _changes(
            {
                place: column.type.result_processor(dialect, None)
                for place, column in enumerate(columns)
            }
        )
        self._send: Final = _by_driver if dialect.name == "sqlite" else _by_engine

    async def rows(self, connection: AsyncConnection, values: Mapping[str, Any]) -> Rows:
        """Run it; returns what it returns, each row in the order of its columns."""
        given: dict[str, Any] = {**self._fixed, **values}
        for name, change in self._writers:
            given[name] = change(given[name])
        sent = given if self._order is None else tuple(given[name] for name in self._order)
        found = await self._send(connection, self._text, sent)
        return [self._read(row) for row in found] if self._readers else found

    def _read(self, row: Sequence[Any]) -> Sequence[Any]:
        read = list(row)
        for place, change in self._readers:
            read[place] = change(read[place])
        return read


def _changes(found: Mapping[Any, _Change | None]) -> list[tuple[Any, _Change]]:
    """What is to be changed on the way, and how."""
    return [(where, change) for where, change in found.items() if change is not None]


async def _by_engine(connection: AsyncConnection, text: str, values: Any) -> Rows:  # noqa: ANN401 - a driver's
    result = await connection.exec_driver_sql(text, values)
    return result.all() if result.returns_rows else ()


async def _by_driver(connection: AsyncConnection, text: str, values: Any) -> Rows:  # noqa: ANN401 - a driver's
    driver: Any = (await connection.get_raw_connection()).driver_connection
    found: Rows = await driver.execute_fetchall(text, values)
    return found
