"""Limits on Redis and money in SQL, both shared by processes: one request is one in both."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from earmark import (
    BudgetExceeded,
    Limiter,
    Limits,
    RedisBackend,
    RequestIdConflict,
    Scope,
    Usage,
)
from earmark.ledger import Budget, Ledger, Spend
from earmark.testing import ManualClock
from tests.ledgers import NOON, PRICES, Database, adds_up, only_row, usd
from tests.servers import RedisServer

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

ALICE = Budget("user:alice", usd(10), "total")
SCOPE = Scope("api_key:alice", Limits(rph=10, concurrency=2))
SCOPE_OF_MANY = Scope("api_key:alice", Limits(rph=100))


def spend(estimate: str) -> Spend:
    return Spend((ALICE,), "big", usd(estimate))


@asynccontextmanager
async def two(
    database: Database, server: RedisServer, namespace: str
) -> AsyncIterator[tuple[Limiter, Limiter, Ledger]]:
    """Two limiters as two processes have them."""
    first = database.ledger()
    await first.create()
    limiters = [
        Limiter(
            RedisBackend.from_url(server.url, namespace=namespace), ledger=ledger, prices=PRICES
        )
        for ledger in (first, database.ledger())
    ]
    async with limiters[0], limiters[1]:
        yield limiters[0], limiters[1], first


async def used(limiter: Limiter) -> list[int]:
    return [limit.used for limit in (await limiter.peek(SCOPE))[0].limits]


async def test_r9_one_id_is_one_request_in_both_stores(
    database: Database, shared_redis: RedisServer, namespace: str
) -> None:
    """R9, R5: whoever asks for an open id is given it, limits and money; the ledger's row says who resolved it."""
    async with two(database, shared_redis, namespace) as (one, other, ledger):
        mine = await one.pre_commit(SCOPE, request_id="r", spend=spend("1"))
        theirs = await other.pre_commit(SCOPE, request_id="r", spend=spend("1"))
        assert (await ledger.standing(ALICE)).pending == 1
        assert await used(one) == [1, 1]
        with pytest.raises(RequestIdConflict):
            await other.pre_commit(SCOPE, request_id="r", spend=spend("2"))
        with pytest.raises(RequestIdConflict):
            await one.pre_commit(SCOPE, request_id="r", spend=spend("2"))
        assert await theirs.settle_success(Usage(100_000, 0))
        assert not await mine.settle_success(Usage(200_000, 0))
        assert (await only_row(ledger)).cost == usd("0.2")
        assert await used(one) == [1, 0]
        await adds_up(ledger)


async def test_b57_refused_by_its_budget_no_limit_has_counted(
    database: Database, shared_redis: RedisServer, namespace: str
) -> None:
    """B57, R2: what Redis gave it gets back, before the refusal is told."""
    async with two(database, shared_redis, namespace) as (one, other, ledger):
        held = await one.pre_commit(SCOPE, spend=spend("9"))
        with pytest.raises(BudgetExceeded) as refused:
            await other.pre_commit(SCOPE, request_id="r", spend=spend("2"))
        assert refused.value.pending == 9
        assert await used(one) == [1, 1]
        await held.cancel()
        again = await one.pre_commit(SCOPE, request_id="r", spend=spend("2"))  # the id is free
        assert await again.close_reserved_only()
        assert await used(one) == [1, 0]
        assert await ledger.spent(ALICE) == 2
        await adds_up(ledger)


async def test_a_token_is_settled_by_another_process(
    database: Database, shared_redis: RedisServer, namespace: str
) -> None:
    """R5: all that a worker needs is in the row: keys, price and the moment of admission; the first one wins."""
    async with two(database, shared_redis, namespace) as (one, other, ledger):
        for scopes in ((SCOPE,), ()):
            reservation = await one.pre_commit(*scopes, spend=spend("1"))
            if not scopes:
                reservation.request_id  # noqa: B018 - it may be asked for by name
            token = reservation.token()
            assert await other.settle_success(token, Usage(100_000, 10_000))
            assert not await other.cancel(token)
            assert not await one.close_reserved_only(token)
        rows = await ledger.rows()
        assert [(row.cost, row.outcome, row.budget_keys) for row in rows] == [
            (usd("0.28"), "settled", ("user:alice",))
        ] * 2
        assert rows[0].key == "api_key:alice"
        assert await used(one) == [1, 0]
        await adds_up(ledger)


@pytest.mark.parametrize(("served", "cost"), [(None, "0.2"), ("mini", "0.015")])
async def test_who_has_a_token_settles_what_has_expired_at_its_price(
    database: Database,
    shared_redis: RedisServer,
    namespace: str,
    served: str | None,
    cost: str,
) -> None:
    """C35, R5: an expiry forgets no price: who turns up late elsewhere is charged by it."""
    clock = ManualClock(NOON)
    ledgers = [database.ledger(clock=clock, timeout=60) for _ in range(2)]
    await ledgers[0].create()
    one, other = (
        Limiter(
            RedisBackend.from_url(shared_redis.url, namespace=namespace, clock=clock),
            ledger=ledger,
            prices=PRICES,
        )
        for ledger in ledgers
    )
    async with one, other:
        token = (await one.pre_commit(SCOPE, spend=spend("5"))).token()
        clock.advance(3_600)
        assert await ledgers[0].spent(ALICE) == 5
        assert await other.settle_success(token, Usage(100_000, 0), model=served)
        assert not await other.settle_success(token, Usage(200_000, 0))
        first, last = await ledgers[0].rows()
        assert (first.outcome, first.cost, first.unsettled) == ("expired", usd(5), True)
        assert (last.outcome, last.estimated, last.price_version) == ("settled", False, "v1")
        assert (last.model, last.usage.input_tokens) == (served or "big", 100_000)
        assert await ledgers[0].spent(ALICE) == usd(cost)
        await adds_up(ledgers[0])


async def test_slots_do_not_wait_for_sql(
    database: Database, shared_redis: RedisServer, namespace: str
) -> None:
    """The ledger may take its time: the slot is free before it has answered."""
    async with two(database, shared_redis, namespace) as (one, _, ledger):
        reservation = await one.pre_commit(SCOPE, spend=spend("1"))
        seen: list[list[int]] = []
        write = ledger._store.write

        async def slow(*arguments: Any, **options: Any) -> Any:
            seen.append(await used(one))
            return await write(*arguments, **options)

        ledger._store.write = slow  # type: ignore[method-assign]
        assert await reservation.settle_success(Usage(1, 1))
        assert seen == [[1, 0]]


async def test_r9_who_chooses_the_librarys_next_ids_is_in_nobodys_way(database: Database) -> None:
    """R9: open or in the log: whoever is given such an id is posted under it, and the other under a name of its own."""
    ledger = database.ledger()
    await ledger.create()
    mallory = Scope("mallory", Limits(rpm=90))
    async with Limiter(ledger=ledger, prices=PRICES) as limiter:
        first = await limiter.pre_commit(mallory)
        nonce, _, number = first.request_id.partition(".")
        await first.cancel()
        names = [f"{nonce}.{int(number) + ahead}" for ahead in range(8, 24)]
        chosen = [
            await limiter.pre_commit(mallory, request_id=name, spend=Spend((), "big", usd("1")))
            for name in names
        ]
        for handle in chosen[::2]:
            assert await handle.settle_success(0, cost=usd("0.5"))
        plain = [await limiter.pre_commit(SCOPE_OF_MANY, spend=spend("0.1")) for _ in range(16)]
        twins = [one.request_id for one in plain if one.request_id in names]
        assert len(twins) >= 4, "none of the names that were chosen has come"
        for one in plain:
            assert await one.settle_success(0, cost=usd("0.01"))
        for handle in chosen[1::2]:
            assert await handle.settle_success(0, cost=usd("0.5"))
        assert await ledger.spent(ALICE) == usd("0.16")
        for name in twins:
            assert (await only_row(ledger, name)).key == "api_key:alice"
            assert (await only_row(ledger, f"={name}")).key == "mallory"
            again = await limiter.pre_commit(mallory, request_id=name, spend=spend("1"))
            assert await again.cancel()  # the name is free: its request is resolved
        await adds_up(ledger)
