"""Who a request is: its id while it is open and afterwards, its token, and what becomes of it when it is dropped."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from earmark import (
    BackendUnavailable,
    BudgetExceeded,
    Limiter,
    Limits,
    RequestIdConflict,
    Reservation,
    Scope,
    Usage,
)
from earmark.ledger import Budget, Spend
from earmark.ledger.line import Work
from earmark.ledger.store import Unreachable
from tests.ledgers import PRICES, Database, adds_up, deliver, only_row, opened, usd

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]
ALICE = Budget("user:alice", usd(10), "monthly")
SCOPE = Scope("api_key:alice", Limits(rpd=10, tpd=1_000, concurrency=2))


def spend(estimate: str | None, *budgets: Budget, model: str | None = None) -> Spend:
    return Spend(budgets or (ALICE,), model, None if estimate is None else usd(estimate))


async def test_c53_the_served_model_is_logged_and_the_budget_is_that_of_the_request(
    database: Database,
) -> None:
    """C53: the keys are those of the reservation, whatever model answered; the price is the served one's."""
    per_model = Budget("model:big", usd(1), "monthly")
    async with opened(database) as (limiter, ledger, _):
        first = await limiter.pre_commit(spend=spend(None, per_model, model="big"))
        await first.settle_success(Usage(1, 1), cost=usd("0.5"), model="vendor/big@default")
        second = await limiter.pre_commit(spend=spend(None, per_model, model="big"))
        await second.settle_success(Usage(1_000_000, 0), model="mini")
        third = await limiter.pre_commit(spend=spend(None, per_model, model="big"))
        await third.settle_success(Usage(1_000_000, 0), model="vendor/big@default")
        models = [(row.model, row.cost) for row in await ledger.rows(key="model:big")]
        assert models == [
            ("vendor/big@default", usd("0.5")),
            ("mini", usd("0.15")),
            ("vendor/big@default", 2),  # of no known price: that of the model which was asked for
        ]
        with pytest.raises(BudgetExceeded):
            await limiter.pre_commit(spend=spend(None, per_model, model="big"))


async def test_r9_an_id_that_is_open_is_the_same_reservation(database: Database) -> None:
    """R9: asked again it holds nothing more; with another ask it conflicts; once it is resolved the id is free."""
    async with opened(database) as (limiter, ledger, _):
        for scopes in ((), (SCOPE,)):
            name = f"r{len(scopes)}"
            one = await limiter.pre_commit(*scopes, request_id=name, spend=spend("1"))
            assert await limiter.pre_commit(*scopes, request_id=name, spend=spend("1")) is one
            with pytest.raises(RequestIdConflict):
                await limiter.pre_commit(*scopes, request_id=name, spend=spend("2"))
            with pytest.raises(RequestIdConflict):
                await limiter.pre_commit(*scopes, request_id=name)
            assert (await ledger.standing(ALICE)).pending == 1
            assert await one.cancel()
            one = await limiter.pre_commit(*scopes, request_id=name, spend=spend("2"))
            assert await one.settle_success(1, cost=usd(1))
            again = await limiter.pre_commit(*scopes, request_id=name, spend=spend("2"))
            assert again is not one
            assert not await one.settle_success(1, cost=usd(1))
            assert await again.settle_success(1, cost=usd("0.5"))
            rows = await ledger.rows(request_id=name)
            assert [row.cost for row in rows] == [usd(1), usd("0.5")]
            # A bill for the id is for the last that had it; each has a name of its own.
            assert await ledger.correct(name, usd("0.25"))
            assert await ledger.correct(rows[0].reservation, usd("0.75"))
            costs = [row.cost for row in await ledger.rows(request_id=name)]
            assert costs == [usd(1), usd("0.5"), usd("-0.25"), usd("-0.25")]
        assert await ledger.spent(ALICE) == 2
        assert [limit.used for limit in (await limiter.peek(SCOPE))[0].limits] == [2, 2, 0]
        await adds_up(ledger)


@pytest.mark.parametrize("scopes", [(), (SCOPE,)], ids=["unlimited", "limited"])
async def test_r9_many_callers_at_once_with_one_id(
    database: Database, scopes: tuple[Scope, ...]
) -> None:
    """R9: they are given one reservation; where its budget refuses, all are refused, and nothing is left."""
    async with opened(database) as (limiter, ledger, _):

        async def ask(estimate: str) -> object:
            try:
                return await limiter.pre_commit(*scopes, request_id="r", spend=spend(estimate))
            except BudgetExceeded as refusal:
                return type(refusal)

        assert {*await asyncio.gather(*(ask("11") for _ in range(5)))} == {BudgetExceeded}
        assert [limit.used for limit in (await limiter.peek(SCOPE))[0].limits] == [0, 0, 0]
        found = await asyncio.gather(*(ask("4") for _ in range(5)))
        assert len({id(one) for one in found}) == 1
        standing = await ledger.standing(ALICE)
        assert (standing.spent, standing.pending) == (usd(0), usd(4))
        assert isinstance(found[0], Reservation)
        assert await found[0].settle_success(1, cost=usd(1))
        assert await ledger.spent(ALICE) == 1
        await adds_up(ledger)


async def test_r9_two_processes_with_one_id_hold_once(database: Database) -> None:
    """R9, R5: two limiters that share only the ledger: one hold, and its row says which of them has resolved it."""
    async with opened(database) as (limiter, ledger, clock):
        async with Limiter(ledger=database.ledger(clock=clock), prices=PRICES) as other:
            mine = await limiter.pre_commit(SCOPE, request_id="r", spend=spend("1"))
            theirs = await other.pre_commit(SCOPE, request_id="r", spend=spend("1"))
            with pytest.raises(RequestIdConflict):
                await other.pre_commit(request_id="r", spend=spend("2"))
            assert (await ledger.standing(ALICE)).pending == 1
            assert await theirs.settle_success(1, cost=usd("0.7"))
            assert not await mine.settle_success(1, cost=usd("0.9"))
        assert (await only_row(ledger)).cost == usd("0.7")
        await adds_up(ledger)


async def test_r9_an_adoption_that_is_cut_off_undoes_nothing_of_anothers(
    database: Database,
) -> None:
    """R9: whoever asks for an open id, and does not hear whether it was given it, has nothing to take back."""
    async with opened(database) as (limiter, ledger, clock):
        theirs = await limiter.pre_commit(request_id="r", spend=spend("1"))
        mine = database.ledger(clock=clock, timeout=60)
        async with Limiter(ledger=mine, prices=PRICES) as other:
            write = mine._store.write

            async def cut(work: Work[Any]) -> Any:
                async def undone(connection: AsyncConnection) -> None:
                    await work(connection)
                    raise LookupError

                with pytest.raises(LookupError):
                    await write(undone)
                raise Unreachable(None, asked=True)

            mine._store.write = cut  # type: ignore[assignment, method-assign]
            with pytest.raises(BackendUnavailable):
                await other.pre_commit(request_id="r", spend=spend("1"))
            mine._store.write = write  # type: ignore[method-assign]
            await deliver(mine)
        assert (await ledger.standing(ALICE)).pending == 1
        assert await theirs.settle_success(1, cost=usd("0.7"))
        assert (await only_row(ledger)).cost == usd("0.7")
        await adds_up(ledger)


async def test_a_token_is_settled_by_whoever_has_it(database: Database) -> None:
    """R5: the price that was stamped at admission counts, also where another list is in force by now."""
    async with opened(database) as (limiter, ledger, _):
        reservation = await limiter.pre_commit(SCOPE, spend=spend("1", model="big"))
        token = reservation.token()
        del reservation
        assert await limiter.settle_success(token, Usage(100_000, 10_000))
        assert not await limiter.cancel(token)
        row = await only_row(ledger)
        assert (row.cost, row.price_version) == (usd("0.28"), "v1")
        with pytest.raises(ValueError, match="no ledger"):
            await Limiter(limiter._backend).cancel(token)


async def test_r15_a_dropped_reservation_is_abandoned_with_its_money(database: Database) -> None:
    """R15: the next message posts what it held, marked unsettled."""
    async with opened(database) as (limiter, ledger, _):
        reservation = await limiter.pre_commit(SCOPE, spend=spend("1"))
        with pytest.warns(ResourceWarning, match="dropped while open"):
            del reservation
        await limiter.peek(SCOPE)
        row = await only_row(ledger)
        assert (row.outcome, row.cost, row.unsettled) == ("abandoned", usd(1), True)
        async with await limiter.pre_commit(SCOPE, spend=spend("2")):
            pass
        assert [row.outcome for row in await ledger.rows()] == ["abandoned", "closed"]
