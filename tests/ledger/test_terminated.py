"""A server that ends its clients' sessions, again and again: what a caller was told is what the log says.

An administrator does so, or a failover. It is told in the middle of a message, of which a driver may make anything.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import nullcontext
from decimal import Decimal
from typing import Final

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from earmark import BackendUnavailable, Limiter
from earmark.ledger import Budget, Ledger, Spend
from earmark.ledger.failures import is_outage
from earmark.ledger.store import Unreachable
from tests.ledgers import NOON, Database, adds_up, deliver, opened, postgresql, usd, wake
from tests.postgres import postgres_server
from tests.reached import Reached

BUDGETS: Final = (Budget("user:alice", usd(1_000), "monthly"), Budget("team", None, "daily"))
CALLERS: Final = 8
TURNS: Final = 12

reached = Reached("sessions that a server ends")


class InternalClientError(Exception):
    """As asyncpg calls it, where it has lost its place in the protocol."""


class InterfaceError(Exception):
    """As both drivers call it, where there is no connection."""


class DataError(Exception):
    """As both drivers call a value that does not fit."""

    sqlstate = "22003"


@pytest.mark.parametrize(
    ("error", "outage"),
    [
        (InternalClientError("cannot switch to state 15"), True),
        (InterfaceError("connection is closed"), True),
        (ConnectionResetError(), True),
        (TimeoutError(), True),
        (DataError(), False),
        (ValueError("no such thing"), False),
        (KeyError("a mistake of ours"), False),
    ],
)
def test_a_driver_that_has_lost_its_connection_is_an_outage(error: Exception, outage: bool) -> None:
    """Whether it says so through SQLAlchemy or by itself; a mistake is none."""
    assert is_outage(error) is outage
    wrapped = DBAPIError.instance("SELECT 1", {}, error, Exception)
    if isinstance(wrapped, DBAPIError):
        assert is_outage(wrapped) is outage
    internal = type("InternalError", (DBAPIError,), {})("SELECT 1", {}, InternalClientError())
    assert is_outage(internal)


async def _storm(ledgers: tuple[Ledger, Ledger], ending: AsyncEngine) -> dict[str, Decimal | None]:
    """Life cycles of many callers of two processes, whose sessions are ended; returns what each was told."""
    limiters = [Limiter(ledger=ledger) for ledger in ledgers]
    told: dict[str, Decimal | None] = {}
    chance = random.Random(7)

    async def caller(number: int) -> None:
        for turn in range(TURNS):
            name = f"{number}-{turn}"
            if chance.random() < 0.3:
                await end()
            try:
                reservation = await limiters[number % 2].pre_commit(
                    request_id=name, spend=Spend(BUDGETS[:: 1 - 2 * (number % 2)], None, usd(1))
                )
            except BackendUnavailable:
                reached.count("refused")
                continue
            match turn % 3:
                case 0:
                    told[name] = None
                    assert await reservation.cancel()
                case 1:
                    told[name] = usd(1)
                    assert await reservation.close_reserved_only()
                case _:
                    told[name] = usd("0.25")
                    assert await reservation.settle_success(1, cost=usd("0.25"))

    async def end() -> None:
        others = text(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
            " AND application_name <> 'ending' AND random() < 0.5"
        )
        async with ending.connect() as connection:
            reached.count("ended", (await connection.execute(others)).scalar_one())

    await asyncio.gather(*(caller(number) for number in range(CALLERS)))
    return told


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_c24_r9_what_callers_were_told_is_what_the_log_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C24, R9: sessions end in the middle of something: nothing is lost, nothing counts twice, nothing is held."""
    monkeypatch.setattr("earmark.ledger.store.PAUSE", 0)
    with postgres_server() as server:
        database = postgresql(server.url)
        pair = tuple(database.ledger(clock=lambda: NOON, timeout=60) for _ in range(2))
        await pair[0].create()
        names = {"server_settings": {"application_name": "ending"}}
        ending = create_async_engine(server.url, isolation_level="AUTOCOMMIT", connect_args=names)
        told = await _storm((pair[0], pair[1]), ending)
        await ending.dispose()
        for ledger in pair:
            for _ in range(100):  # a connection of the pool that was ended costs a try each
                if await ledger.deliver():
                    break
            await deliver(ledger)
            assert ledger.health().lost == 0
        rows = await pair[0].rows(limit=1_000)
        paid = {name: cost for name, cost in told.items() if cost is not None}
        assert {row.request_id: row.cost for row in rows} == paid
        assert len(rows) == len(paid)
        standing = await pair[0].standing(BUDGETS[0])
        assert (standing.spent, standing.pending) == (sum(paid.values(), usd(0)), usd(0))
        await adds_up(pair[0])
        for ledger in pair:
            await ledger.aclose()
    assert reached.sums["ended"] > 20
    assert paid


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_who_writes_says_that_the_database_is_there(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One session that ends refuses others for a moment; a write that succeeds ends that, and a question does not."""
    monkeypatch.setattr("earmark.ledger.store.PAUSE", 3_600)
    async with opened(database) as (_, ledger, _clock):
        store = ledger._store
        began, go_on = asyncio.Event(), asyncio.Event()

        async def slow(connection: AsyncConnection) -> int:
            began.set()
            await go_on.wait()
            return int((await connection.execute(text("SELECT 1"))).scalar_one())

        async def cut(_: AsyncConnection) -> None:
            raise ConnectionResetError

        for ask, there in ((store.read, False), (store.write, True)):
            began.clear()
            go_on.clear()
            asking = asyncio.ensure_future(ask(slow))
            await began.wait()
            if (
                database.name == "postgresql" or not there
            ):  # SQLite has one writer, whose others wait
                with pytest.raises(Unreachable):
                    await store.write(cut)
            go_on.set()
            assert await asking == 1
            assert ledger.health().available is there
            with nullcontext() if there else pytest.raises(BackendUnavailable, match="Reset"):
                await ledger.rows()
            await wake(ledger)
