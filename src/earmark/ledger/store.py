"""Where a ledger's transactions run: an engine for every event loop, and one answer to whether the database is there.

Connections belong to the loop that opened them (R19). A database that was out of reach a moment ago is not asked again
for each request (`PAUSE`): an outage costs no timeout per caller.
"""

from __future__ import annotations

import asyncio
import sys
import time
import weakref
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from sqlalchemy import event, make_url
from sqlalchemy.engine import URL
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from earmark.ledger.failures import Again, asks_again, is_outage, lacks_tables
from earmark.ledger.line import Line, Work
from earmark.ledger.statements import dialect_of
from earmark.shielding import finish, in_trio

Result = TypeVar("Result")

_Ask: TypeAlias = Callable[[Work[Result]], Coroutine[Any, Any, Result]]

PAUSE: Final = 0.5
"""Seconds for which a database that could not be reached is not asked."""

_TRIES: Final = 5

_AT_ONCE: Final = 10
"""So many transactions of one event loop at a time; they would wait for one another's rows."""

_DRIVERS: Final = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}


class Unreachable(Exception):
    """Nobody could answer: what was asked has happened or has not.

    Attributes:
        asked: whether it may have happened.
    """

    def __init__(self, reason: str | None, *, asked: bool) -> None:
        super().__init__(reason)
        self.asked = asked


class _Place(NamedTuple):
    """What one event loop has."""

    engine: AsyncEngine
    writer: AsyncEngine  # the same, for what writes
    line: Line | None
    turns: asyncio.Semaphore  # who waits for its turn waits for no answer: a queue is no outage


class Store:
    """The database of one ledger.

    Args:
        database: a URL, of which every loop gets an engine of its own; or an engine, which serves one loop.
        timeout: seconds that a transaction may take before the database counts as out of reach.
    """

    def __init__(self, database: str | URL | AsyncEngine, timeout: float) -> None:
        self._given = database if isinstance(database, AsyncEngine) else None
        self._url = database.url if isinstance(database, AsyncEngine) else _url(database)
        kind = self._url.get_backend_name()
        if kind not in _DRIVERS:
            msg = f"a ledger is kept in SQLite or PostgreSQL, not in {kind!r}"
            raise ValueError(msg)
        self._is_sqlite: Final = kind == "sqlite"
        self.dialect: Final = dialect_of(self._url)
        name = self._url.database
        self._only_one = self._is_sqlite and (
            not name or name == ":memory:" or "mode=memory" in str(self._url)
        )
        self._timeout = timeout
        self._places: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Place] = (
            weakref.WeakKeyDictionary()
        )
        self._one_loop: weakref.ref[asyncio.AbstractEventLoop] | None = None
        self._down_until = 0.0
        self.reason: str | None = None

    @property
    def is_down(self) -> bool:
        """Whether it was out of reach a moment ago."""
        return time.monotonic() < self._down_until

    async def write(self, work: Work[Result], *, patient: bool = False) -> Result:
        """Run work in a transaction; it has happened once this returns.

        Args:
            work: what is to be done.
            patient: it may take as long as it does.

        Raises:
            Unreachable: it has happened or has not.
        """
        place = self._place()
        ask: _Ask[Result] = partial(_run, place.writer)
        if place.line is not None:
            ask = place.line.run
        answer = await self._answered(place, ask, work, patient=patient)
        # Whoever was cut off a moment ago: it takes writes. (That it answers questions would not say so.)
        self.reason, self._down_until = None, 0.0
        return answer

    async def read(self, work: Work[Result], *, patient: bool = False) -> Result:
        """Run work that changes nothing, on what was committed at one moment.

        Args:
            work: what is to be found out.
            patient: it may take as long as it does.

        Raises:
            Unreachable: nobody could answer.
        """
        place = self._place()
        ask: _Ask[Result] = partial(_look, place.engine)
        if place.line is not None and self._only_one:
            ask = place.line.run
        # To its end: a driver that is cut off in the middle of a question may leave a connection open.
        return await finish(partial(self._answered, place, ask, work, patient=patient))

    async def aclose(self) -> None:
        """Close what this loop has open, if its server listens; an engine that was handed in stays open."""
        place = self._places.pop(asyncio.get_running_loop(), None)
        if place is None:
            return
        if place.line is not None:
            await place.line.aclose()
        if self._given is None:
            with suppress(TimeoutError):  # each connection says goodbye, and waits for an answer
                async with asyncio.timeout(self._timeout):
                    await place.engine.dispose()

    async def _answered(
        self, place: _Place, ask: _Ask[Result], work: Work[Result], *, patient: bool
    ) -> Result:
        self._check()
        try:
            if place.line is not None:  # which has turns, and a limit of time, of its own
                answer = await ask(work)
            else:
                async with place.turns:
                    self._check()
                    async with asyncio.timeout(None if patient else self._timeout):
                        answer = await ask(work)
        except Unreachable:
            raise
        except Exception as error:
            if lacks_tables(error):
                error.add_note("`await ledger.create()` makes the ledger's tables, or a migration.")
            if not is_outage(error):
                raise
            told = getattr(error, "orig", None) or error
            self.reason = f"{type(told).__name__}: {told}".strip(": ")
            self._down_until = time.monotonic() + PAUSE
            raise Unreachable(self.reason, asked=True) from error
        if not self.is_down:
            self.reason = None
        return answer

    def _check(self) -> None:
        if self.is_down:
            raise Unreachable(self.reason, asked=False)

    def _place(self) -> _Place:
        if in_trio() or "asyncio" not in sys.modules:
            msg = "the ledger needs asyncio: under trio there is no driver for SQLAlchemy"
            raise RuntimeError(msg)
        loop = asyncio.get_running_loop()
        place = self._places.get(loop)
        if place is None:
            place = self._places[loop] = self._open(loop)
        return place

    def _open(self, loop: asyncio.AbstractEventLoop) -> _Place:
        if self._given is not None or self._only_one:
            mine = None if self._one_loop is None else self._one_loop()
            if self._one_loop is not None and mine is not loop:
                what = "an engine" if self._given is not None else "a database in memory"
                msg = f"{what} belongs to the event loop that used it first: give a ledger the URL of a database"
                raise RuntimeError(msg)
            self._one_loop = weakref.ref(loop)
        engine = self._given
        if engine is None:
            engine = create_async_engine(self._url)
            prepare = self._prepare_sqlite if self._is_sqlite else self._prepare_postgresql
            event.listen(engine.sync_engine, "connect", prepare)
        # Each statement is to see what was committed before it, whatever a server's default is. It costs no message.
        level = "AUTOCOMMIT" if self._is_sqlite else "READ COMMITTED"
        writer = engine.execution_options(isolation_level=level)
        line = Line(writer, self._timeout) if self._is_sqlite else None
        return _Place(engine, writer, line, asyncio.Semaphore(_AT_ONCE))

    def _prepare_sqlite(self, connection: Any, _record: object) -> None:  # noqa: ANN401 - a driver's
        """A SQLite connection: readers beside the writer, commits that a power cut leaves, patience with others."""
        cursor = connection.cursor()
        for pragma in (
            f"busy_timeout = {round(self._timeout * 500)}",
            "journal_mode = WAL",
            "synchronous = FULL",
            "foreign_keys = ON",
        ):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    def _prepare_postgresql(self, connection: Any, _record: object) -> None:  # noqa: ANN401 - a driver's
        """A connection that gives up its locks when its process stands still: others wait for the same keys."""
        cursor = connection.cursor()
        cursor.execute(f"SET idle_in_transaction_session_timeout = {round(self._timeout * 1_000)}")
        cursor.close()
        connection.commit()


async def _run(engine: AsyncEngine, work: Work[Result]) -> Result:
    """Run work in a transaction of PostgreSQL's; once more where that is what its server, or the work, asks for."""
    tries = 0
    while True:
        try:
            async with engine.begin() as connection:
                return await work(connection)
        except Again:  # somebody else has got on
            continue
        except Exception as error:
            tries += 1
            if tries == _TRIES or not asks_again(error):
                raise


async def _look(engine: AsyncEngine, work: Work[Result]) -> Result:
    """Run work on one snapshot: no commit comes between what it reads first and what it reads last."""
    async with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            await connection.exec_driver_sql("BEGIN")
            found = await work(connection)
            await connection.exec_driver_sql("ROLLBACK")  # which the pool does where anything fails
            return found
        await connection.execution_options(
            isolation_level="REPEATABLE READ", postgresql_readonly=True
        )
        async with connection.begin():
            return await work(connection)


def schemas_of(database: str | URL | AsyncEngine) -> Mapping[str | None, str | None]:
    """What an engine calls the schemas that tables are described in, where it calls them otherwise."""
    if not isinstance(database, AsyncEngine):
        return {}
    return database.get_execution_options().get("schema_translate_map") or {}


def _url(database: str | URL) -> URL:
    url = make_url(database)
    driver = _DRIVERS.get(url.drivername)
    return url if driver is None else url.set(drivername=driver)
