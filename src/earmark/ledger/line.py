"""The one writer that a SQLite database has: transactions that wait together share a commit.

SQLite writes one transaction at a time, and a commit waits for the disk. So the callers of an event loop queue here,
and all who wait when the last commit is over go into the next one together. Each has a savepoint of its own: what
refuses or fails leaves no trace, and disturbs nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

Result = TypeVar("Result")
Work = Callable[[AsyncConnection], Awaitable[Result]]

_TOGETHER: Final = 64
"""So many transactions share a commit at most: the first of them waits for the last."""


class _Waiting(NamedTuple):
    work: Work[Any]
    answer: asyncio.Future[Any]


class Line:
    """The writer of one event loop.

    Args:
        engine: of a SQLite database, whose driver begins no transaction by itself: it would be of a weaker kind.
        timeout: seconds that a commit, with all that is in it, may take.
    """

    def __init__(self, engine: AsyncEngine, timeout: float) -> None:
        self._engine = engine
        self._timeout = timeout
        self._waiting: list[_Waiting] = []
        self._task: asyncio.Task[None] | None = None
        self._connection: AsyncConnection | None = None

    async def run(self, work: Work[Result]) -> Result:
        """Run work in a transaction; it has happened once this returns."""
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(work, answer))
        if (
            self._task is None or self._task.done()
        ):  # one that is cancelled before it has begun leaves no word
            self._task = asyncio.create_task(self._serve())
        return await answer

    async def aclose(self) -> None:
        """Finish what waits, and let go of the connection."""
        if self._task is not None:
            await self._task
        await self._disconnect()

    async def _serve(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:_TOGETHER], self._waiting[_TOGETHER:]
                try:
                    async with asyncio.timeout(self._timeout):
                        results = await self._commit(batch)
                except BaseException as error:
                    await self._fail(batch, error)
                    if not isinstance(error, Exception):
                        raise
                else:
                    for waiting, result in zip(batch, results, strict=True):
                        _tell(waiting.answer, result)
        finally:
            self._task = None

    async def _commit(self, batch: list[_Waiting]) -> list[Any]:
        """Run all of a batch and commit once; the result of each, or the error that it raised."""
        connection = await self._connected()
        driver: Any = (await connection.get_raw_connection()).driver_connection
        await driver.execute_fetchall("BEGIN IMMEDIATE")
        alone = len(batch) == 1
        results = [await self._run_one(connection, driver, one.work, alone=alone) for one in batch]
        undone = alone and isinstance(results[0], Exception)
        # By the driver's own words: through the engine each would be three trips to its thread.
        await (driver.rollback() if undone else driver.commit())
        return results

    async def _run_one(
        self,
        connection: AsyncConnection,
        driver: Any,  # noqa: ANN401 - aiosqlite's connection
        work: Work[Any],
        *,
        alone: bool,
    ) -> object:
        if alone:
            try:
                return await work(connection)
            except Exception as error:  # noqa: BLE001 - it is its caller's
                return error
        # The commit releases all of them: each is within the one before it, and the newest is meant by the name.
        await driver.execute_fetchall("SAVEPOINT one")
        try:
            return await work(connection)
        except Exception as error:
            if not driver.in_transaction:  # a disk that is full may undo all of it, savepoints too
                raise
            await driver.execute_fetchall("ROLLBACK TO one")
            return error

    async def _fail(self, batch: list[_Waiting], error: BaseException) -> None:
        """Nothing of a batch has happened: the connection, and what it had begun, goes."""
        try:
            await self._disconnect()
        finally:
            for waiting in batch:
                _tell(waiting.answer, error)

    async def _connected(self) -> AsyncConnection:
        if self._connection is None:
            self._connection = await self._engine.connect()
        return self._connection

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            if connection.closed:
                return
            try:
                await connection.exec_driver_sql("ROLLBACK")
            except Exception:  # noqa: BLE001 - there may be nothing to roll back, or no connection
                await connection.invalidate()
            await connection.close()


def _tell(answer: asyncio.Future[Any], result: object) -> None:
    if answer.done():  # its caller has gone
        return
    if isinstance(result, BaseException):
        if isinstance(result, asyncio.CancelledError):
            result = ConnectionAbortedError("the event loop is ending")
        answer.set_exception(result)
    else:
        answer.set_result(result)
