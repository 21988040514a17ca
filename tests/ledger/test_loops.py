"""Event loops: a ledger from a URL serves any, an engine or a database in memory the one that had it first."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from earmark import Limiter, Limits, Scope
from earmark.ledger import Budget, Ledger, Spend
from tests.ledgers import Database, usd

ALICE = Budget("user:alice", usd(10), "monthly")
SCOPE = Scope("api_key:alice", Limits(rpd=10, tpd=1_000, concurrency=2))


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_r19_under_trio_the_ledger_says_what_it_needs(
    anyio_backend: str, database: Database
) -> None:
    """R19: the ledger needs asyncio, and says so; nothing stays debited."""
    limiter = Limiter(ledger=database.ledger())
    with pytest.raises(RuntimeError, match="asyncio"):
        await limiter.pre_commit(SCOPE, spend=Spend((ALICE,)))
    assert [limit.used for limit in (await limiter.peek(SCOPE))[0].limits] == [0, 0, 0]
    await limiter.aclose()  # of which there is nothing to say


def test_r19_every_loop_has_connections_of_its_own(database: Database) -> None:
    """R19: one limiter, one loop after another; what one held another settles."""
    ledger = database.ledger()
    limiter = Limiter(ledger=ledger)

    async def hold() -> str:
        await ledger.create()
        reservation = await limiter.pre_commit(spend=Spend((ALICE,), estimate=usd(1)))
        token = reservation.token()
        await limiter.aclose()
        return token

    async def settle(token: str) -> bool:
        try:
            return await limiter.settle_success(token, 1, cost=usd(2))
        finally:
            await limiter.aclose()

    token = asyncio.run(hold())
    assert asyncio.run(settle(token))

    async def look() -> None:
        assert await ledger.spent(ALICE) == 2
        assert await ledger.verify() == ()
        await ledger.aclose()

    asyncio.run(look())


@pytest.mark.parametrize("given", ["memory", "engine"])
def test_r19_what_belongs_to_one_loop_says_so_to_another(database: Database, given: str) -> None:
    """R19: connections cannot be used from another loop than the one that opened them."""
    engine = create_async_engine(database.url)
    ledger = Ledger("sqlite://" if given == "memory" else engine, prefix=database.prefix)

    async def first() -> None:
        await ledger.create()
        await ledger.aclose()
        await engine.dispose()

    asyncio.run(first())
    with pytest.raises(RuntimeError, match="belongs to the event loop"):
        asyncio.run(ledger.spent(ALICE))
