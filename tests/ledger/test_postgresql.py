"""What only a server can do to a ledger: lose a connection at any message, hold up a commit, wait for a lock."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Final

import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from earmark import BackendUnavailable, BudgetExceeded, Limiter, Limits, Scope
from earmark.ledger import Budget, Ledger, Spend
from earmark.ledger.charge import Charge
from earmark.ledger.rows import Held
from earmark.ledger.store import Unreachable
from tests import ledgers
from tests.ledgers import NOON, Database, adds_up, deliver, opened, usd, wake
from tests.postgres import PostgresServer, postgres_server
from tests.servers import HOST

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

ALICE: Final = Budget("user:alice", usd(100), "monthly")
TEAM: Final = Budget("team", usd(100), "daily")
SCOPE: Final = Scope("api_key:alice", Limits(rpd=1_000, concurrency=2))


@pytest.fixture
def server(shared_postgres: PostgresServer) -> Database:
    """Tables of their own."""
    return ledgers.postgresql(shared_postgres.url)


class Proxy:
    """Stands between a ledger and its server, and does what is said about the client's messages from then on.

    Attributes:
        cut_at: the connection ends at the message with this number: it is not sent.
        deaf: the connection ends once that message was sent: its answer is not heard.
        stall: what a message holds that is held up, and all after it, until `go_on`; the client is cut off.
    """

    def __init__(self, url: str) -> None:
        self._to = make_url(url)
        self.cut_at = 0
        self.deaf = False
        self.stall = b""
        self.stalled = asyncio.Event()
        self.go_on = asyncio.Event()
        self._server: asyncio.Server | None = None

    async def start(self) -> str:
        """Listen; returns the URL of the database behind."""
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        port = self._server.sockets[0].getsockname()[1]
        url = self._to.set(port=port, query={"ssl": "disable"})
        return url.render_as_string(hide_password=False)

    def stop(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind = await asyncio.open_connection(self._to.host, self._to.port)
        answers = asyncio.ensure_future(_pump(behind[0], writer))
        try:
            await self._forward(reader, behind[1], answers)
        finally:
            answers.cancel()
            for end in (writer, behind[1]):
                end.close()

    async def _forward(
        self, reader: asyncio.StreamReader, to: asyncio.StreamWriter, answers: asyncio.Future[None]
    ) -> None:
        while message := await reader.read(65_536):
            last = False
            if self.cut_at:
                self.cut_at -= 1
                last = not self.cut_at
            if last and not self.deaf:
                return
            if self.stall and self.stall in message:
                self.stall = b""
                self.stalled.set()
                await self.go_on.wait()
            if last:
                answers.cancel()
            to.write(message)
            await to.drain()
            if last:
                to.write_eof()
                return


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while message := await reader.read(65_536):
        writer.write(message)
        await writer.drain()
    writer.close()


@asynccontextmanager
async def behind_proxy(database: Database) -> AsyncIterator[tuple[Limiter, Ledger, Proxy]]:
    """A limiter whose ledger has the proxy before its server."""
    proxy = Proxy(database.url)
    through = Database(await proxy.start(), database.prefix)
    try:
        async with opened(through) as (limiter, ledger, _):
            yield limiter, ledger, proxy
    finally:
        proxy.stop()


def spend(estimate: str) -> Spend:
    return Spend((ALICE, TEAM), None, usd(estimate))


@pytest.mark.parametrize("deaf", [False, True], ids=["unsent", "unheard"])
async def test_c24_c25_a_connection_that_is_cut_at_any_message(
    server: Database, deaf: bool
) -> None:
    """C24, C25, R9: whichever message is the last, sent or not: held or not, posted or owed, and once in the end."""
    async with behind_proxy(server) as (limiter, ledger, proxy):
        reservation = await limiter.pre_commit(SCOPE, spend=spend("1"))
        await reservation.cancel()
        due = Decimal(0)
        proxy.deaf = deaf
        cut = 0
        for verb in ("hold", "settle", "cancel"):
            number = 0
            while True:
                number += 1
                if verb != "hold":
                    reservation = await limiter.pre_commit(SCOPE, spend=spend("1"))
                proxy.cut_at = number
                try:
                    if verb == "hold":
                        reservation = await limiter.pre_commit(SCOPE, spend=spend("1"))
                    elif verb == "settle":
                        assert await reservation.settle_success(1, cost=usd("0.3"))
                    else:
                        assert await reservation.cancel()
                except BackendUnavailable:
                    assert verb == "hold"
                else:
                    due += usd("0.3") * (verb == "settle")
                untouched, proxy.cut_at = proxy.cut_at, 0
                await deliver(ledger)
                if verb == "hold" and reservation.state == "open":
                    assert await reservation.cancel()
                standing = await ledger.standing(ALICE)
                assert (standing.spent, standing.pending) == (due, usd(0))
                if untouched:
                    break
                cut += 1
        assert cut >= 9  # begin, the statement and the commit of each
        assert sum(row.cost for row in await ledger.rows(limit=1_000)) == due
        assert ledger.health().lost == 0
        await adds_up(ledger)


async def test_r9_a_hold_whose_commit_comes_late_is_undone(server: Database) -> None:
    """R9: the commit is under way while the caller has given up; what undoes the hold waits for it."""
    async with behind_proxy(server) as (limiter, ledger, proxy):
        async with await limiter.pre_commit(spend=spend("1")):
            pass
        ledger._store._timeout = 0.5
        proxy.stall = b"COMMIT;"
        with pytest.raises(BackendUnavailable):
            await limiter.pre_commit(SCOPE, spend=spend("1"))
        assert proxy.stalled.is_set()
        await wake(ledger)
        ledger._store._timeout = 60
        undone = asyncio.ensure_future(deliver(ledger))
        await _until_one_waits(server)
        proxy.go_on.set()
        await undone
        standing = await ledger.standing(ALICE)
        assert (standing.spent, standing.pending) == (usd(1), usd(0))
        assert len(await ledger.rows()) == 1
        await adds_up(ledger)


async def _until_one_waits(database: Database) -> None:
    """Until a session waits for another's lock."""
    engine = create_async_engine(database.url)
    query = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
    async with engine.connect() as connection:
        for _look in range(2_000):
            if (await connection.execute(query)).scalar_one():
                break
            await connection.rollback()
        else:
            pytest.fail("nobody waits")
    await engine.dispose()


async def test_two_bills_at_once_are_both_counted(server: Database) -> None:
    """One has the last word; neither fails, and the log says how it came to that."""
    async with opened(server) as (limiter, ledger, _):
        reservation = await limiter.pre_commit(request_id="r", spend=spend("1"))
        await reservation.settle_success(1, cost=usd(1))
        costs = [usd(number) for number in range(2, 8)]
        assert all(await asyncio.gather(*(ledger.correct("r", cost) for cost in costs)))
        rows = await ledger.rows(request_id="r")
        assert [row.revision for row in rows] == list(range(7))
        assert await ledger.spent(ALICE) in costs
        await adds_up(ledger)


async def test_who_waits_while_a_period_begins_counts_in_it(
    server: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement does not see what was made while it waited for a lock: it finds out, and is run again."""
    monthly, daily = Budget("k", None, "monthly"), Budget("k", None, "daily")
    async with opened(server) as (limiter, ledger, _):
        async with await limiter.pre_commit(spend=Spend((monthly,), None, usd(1))):
            pass
        hold, began, go_on = ledger._writing.hold, asyncio.Event(), asyncio.Event()

        async def slow(connection: AsyncConnection, charge: Charge) -> Held | None:
            found = await hold(connection, charge)
            if charge.request_id == "first":
                began.set()
                await go_on.wait()
            return found

        monkeypatch.setattr(ledger._writing, "hold", slow)
        first = asyncio.ensure_future(
            limiter.pre_commit(request_id="first", spend=Spend((daily,), None, usd(1)))
        )
        await began.wait()
        second = asyncio.ensure_future(limiter.pre_commit(spend=Spend((monthly,), None, usd(2))))
        await _until_one_waits(server)
        go_on.set()
        for reservation in (await first, await second):
            assert await reservation.close_reserved_only()
        assert await ledger.spent(daily) == 4
        await adds_up(ledger)


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
async def test_whatever_a_server_isolates_by_default(server: Database, level: str) -> None:
    """Transactions say themselves what they need: callers at once are all served, also in an engine of the user's."""
    settings = {"default_transaction_isolation": level}
    engine = create_async_engine(server.url, connect_args={"server_settings": settings})
    ledger = Ledger(engine, prefix=server.prefix, clock=lambda: NOON, timeout=60)
    await ledger.create()
    limiter = Limiter(ledger=ledger)
    budget = Budget("k", usd(5), "daily")

    async def ask() -> bool:
        try:
            reservation = await limiter.pre_commit(spend=Spend((budget, TEAM), estimate=usd(1)))
        except BudgetExceeded:
            return False
        return await reservation.settle_success(1, cost=usd(1))

    assert sum(await asyncio.gather(*(ask() for _ in range(20)))) == 5
    await adds_up(ledger)
    await engine.dispose()


async def test_a_process_that_stands_still_gives_its_locks_up(server: Database) -> None:
    """A loop that is blocked in the middle of a transaction does not keep others from the same key."""
    async with opened(server, timeout=1) as (limiter, ledger, _):
        async with await limiter.pre_commit(spend=spend("1")):
            pass
        found: list[Decimal] = []

        async def other() -> None:
            async with (
                Limiter(ledger=server.ledger(timeout=60, clock=lambda: NOON)) as limiter,
                await limiter.pre_commit(spend=spend("2")) as reservation,
            ):
                await reservation.settle_success(1, cost=usd(2))
                found.append(usd(2))

        async def stands_still(connection: AsyncConnection) -> None:
            await connection.execute(
                text(f"SELECT 1 FROM {server.prefix}totals FOR UPDATE")  # noqa: S608 - a test's name
            )
            thread = threading.Thread(target=asyncio.run, args=(other(),))
            thread.start()
            thread.join()
            await connection.execute(text("SELECT 1"))

        with pytest.raises(Unreachable):
            await ledger._store.write(stands_still)
        assert found
        await wake(ledger)
        assert await ledger.spent(ALICE) == 3


async def test_a_server_that_is_killed(anyio_backend: str) -> None:
    """Kill -9 while callers are at work, and a restart: what each was told is what the log says, and nothing twice."""
    with postgres_server("fsync=on", "synchronous_commit=on") as server:
        database = ledgers.postgresql(server.url)
        async with opened(database) as (limiter, ledger, _):
            told: dict[str, Decimal] = {}
            asked = 0

            async def caller(number: int) -> None:
                nonlocal asked
                for turn in range(6):
                    name = f"{number}.{turn}"
                    asked += 1
                    if asked == 12:
                        server.kill()
                    try:
                        reservation = await limiter.pre_commit(request_id=name, spend=spend("1"))
                    except BackendUnavailable:
                        continue
                    assert await reservation.settle_success(1, cost=usd("0.5"))
                    told[name] = usd("0.5")

            await asyncio.gather(*(caller(number) for number in range(4)))
            assert 0 < len(told) < 24
            server.start()
            await deliver(ledger)
            rows = await ledger.rows()
            assert {row.request_id: row.cost for row in rows} == told
            assert len(rows) == len(told)
            standing = await ledger.standing(ALICE)
            assert (standing.spent, standing.pending) == (sum(told.values()), usd(0))
            await adds_up(ledger)
