"""Budgets through a limiter, on both databases: what is admitted, what is refused, and what stands afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from earmark import (
    BudgetExceeded,
    Event,
    Limiter,
    Limits,
    MemoryBackend,
    RateLimited,
    Scope,
    UnknownPrice,
    Usage,
)
from earmark.ledger import Budget, Ledger, PriceList, Spend
from earmark.testing import ManualClock
from tests.ledgers import NOON, PRICES, Database, adds_up, only_row, opened, usd

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]
ALICE = Budget("user:alice", usd(10), "monthly")
SCOPE = Scope("api_key:alice", Limits(rpd=10, tpd=1_000, concurrency=2))


def spend(estimate: str | None, *budgets: Budget, model: str | None = None) -> Spend:
    return Spend(budgets or (ALICE,), model, None if estimate is None else usd(estimate))


async def spent(limiter: Limiter, cost: str, *budgets: Budget) -> None:
    """Have so much been spent."""
    reservation = await limiter.pre_commit(spend=spend(None, *budgets))
    await reservation.settle_success(1, cost=usd(cost))


async def test_b57_a_refusal_by_a_budget_gives_the_limits_back_what_they_gave(
    database: Database,
) -> None:
    """B57, R2: limits first, then the budget; refused by it, no limit has counted anything and nothing is pending."""
    async with opened(database) as (limiter, ledger, _):
        with pytest.raises(BudgetExceeded) as refused:
            await limiter.pre_commit(SCOPE, tokens=100, spend=spend("10.000001"))
        assert (refused.value.retryable, refused.value.retry_after) == (False, None)
        (status,) = await limiter.peek(SCOPE)
        assert [limit.used for limit in status.limits] == [0, 0, 0]
        with pytest.raises(RateLimited):  # refused by a limit, no budget is asked
            await limiter.pre_commit(SCOPE, tokens=1_001, spend=spend("10.000001"))
        assert (await ledger.standing(ALICE)).pending == 0
        assert await ledger.rows() == ()
        await adds_up(ledger)


@pytest.mark.parametrize(
    ("limit", "spent_before", "estimate", "admitted"),
    [
        ("10", "10.00", None, False),  # nothing is left
        ("10", "9.999999999", None, True),
        ("10", "9.50", "0.50", True),
        ("10", "9.50", "0.500000001", False),
        ("0", "0", None, False),  # 0 spends nothing
        ("0", "0", "0", False),
        (None, "1000000", "1000000", True),  # unlimited
        ("0.00001", "0", "0.00001", True),
        ("0.00001", "0.000009999", "0.000000002", False),
    ],
)
async def test_b58_b59_a_budget_admits_what_fits(
    database: Database, limit: str | None, spent_before: str, estimate: str | None, admitted: bool
) -> None:
    """B58, B59: denied iff posted + pending + estimate > limit, or posted + pending >= limit."""
    budget = Budget("k", None if limit is None else usd(limit), "total")
    async with opened(database) as (limiter, ledger, _):
        assert await ledger.spent(budget) == 0  # no rows
        if usd(spent_before):
            await spent(limiter, spent_before, replace(budget, limit=None))
        if admitted:
            reservation = await limiter.pre_commit(spend=spend(estimate, budget))
            assert await reservation.cancel()
        else:
            with pytest.raises(BudgetExceeded):
                await limiter.pre_commit(spend=spend(estimate, budget))
        assert await ledger.spent(budget) == usd(spent_before)


async def test_what_a_refusal_says(database: Database) -> None:
    """Which budget, limit, spent, pending, asked, resets_at; of several the one that refuses the longest."""
    daily, monthly = Budget("team", usd(5), "daily"), Budget("team", usd(6), "monthly")
    async with opened(database) as (limiter, _, _clock):
        await spent(limiter, "3", daily)
        held = await limiter.pre_commit(spend=spend("1.5", daily))
        with pytest.raises(BudgetExceeded) as refused:
            await limiter.pre_commit(spend=spend("1", daily, monthly))
        error = refused.value
        assert (error.budget, error.limit) == (daily, usd(5))
        assert (error.spent, error.pending, error.asked) == (usd(3), usd("1.5"), usd(1))
        assert error.resets_at == datetime(2026, 4, 2, tzinfo=UTC)
        assert (error.retryable, error.retry_after) == (True, 43_200)
        with pytest.raises(BudgetExceeded) as refused:
            await limiter.pre_commit(spend=spend("2", daily, monthly))
        assert refused.value.budget == monthly
        await held.cancel()


async def test_b60_the_next_request_sees_what_was_spent(database: Database) -> None:
    """B60: settled, streamed or not, the very next request sees the new total."""
    tight = Budget("user:bob", usd("0.01"), "daily")
    async with opened(database) as (limiter, ledger, _):
        reservation = await limiter.pre_commit(spend=Spend((tight,), "big"))

        async def answer() -> AsyncIterator[bytes]:
            yield b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}],"usage":null}\n\n'
            yield (
                b'data: {"choices":[],"usage":{"prompt_tokens":1000,"completion_tokens":1000,"total_tokens":2000}}\n\n'
            )
            yield b"data: [DONE]\n\n"

        async for item in reservation.stream(answer()):
            if item == b"data: [DONE]\n\n":  # the consumer has not had the end of the body yet
                assert await ledger.spent(tight) == usd("0.01")
        with pytest.raises(BudgetExceeded):
            await limiter.pre_commit(spend=Spend((tight,), "big"))
        row = await only_row(ledger)
        assert (row.outcome, row.estimated, row.usage) == (
            "settled",
            False,
            Usage(1000, 1000, reported_total=2000),
        )
        await adds_up(ledger)


async def test_c24_a_settlement_counts_once(database: Database) -> None:
    """C24: settled twice it is spent once, and what the others hold stays held."""
    async with opened(database) as (limiter, ledger, _):
        one = await limiter.pre_commit(spend=spend("4"))
        other = await limiter.pre_commit(spend=spend("4"))
        assert await one.settle_success(1, cost=usd(1))
        assert not await one.settle_success(1, cost=usd(1))
        standing = await ledger.standing(ALICE)
        assert (standing.spent, standing.pending, standing.remaining) == (usd(1), usd(4), usd(5))
        with pytest.raises(BudgetExceeded):
            await limiter.pre_commit(spend=spend("6"))
        third = await limiter.pre_commit(spend=spend("5"))
        assert await third.cancel()
        assert await other.close_reserved_only()
        assert await ledger.spent(ALICE) == 5
        await adds_up(ledger)


async def test_c31_of_many_at_once_so_many_are_admitted_as_fit(database: Database) -> None:
    """C31: spent 1.99 of 2.00, five holds of 0.50 at once: none; of 1.98, five of 0.02: exactly one."""
    budget = Budget("k", usd(2), "total")
    async with opened(database) as (limiter, ledger, _):
        await spent(limiter, "1.98", budget)

        async def ask(estimate: str) -> bool:
            try:
                reservation = await limiter.pre_commit(spend=spend(estimate, budget))
            except BudgetExceeded:
                return False
            await reservation.close_reserved_only()
            return True

        assert sum(await asyncio.gather(*(ask("0.50") for _ in range(5)))) == 0
        assert sum(await asyncio.gather(*(ask("0.02") for _ in range(5)))) == 1
        assert await ledger.spent(budget) == 2
        await adds_up(ledger)


@pytest.mark.parametrize(
    ("usage", "cost", "posted", "estimated"),
    [
        (Usage(100_000, 10_000), None, "0.28", False),
        (
            Usage(100_000, 10_000, cached_input_tokens=60_000),
            None,
            "0.19",
            False,
        ),  # C46: cached once
        (Usage(1, 0), None, "0.000002", False),
        (Usage(100_000, 10_000), "0.0000007", "0.0000007", False),  # B59
        (Usage(100_000, 10_000), "0", "0", False),  # an explicit 0 is 0
        (Usage(0, 0), None, "0", False),  # refused unbilled, or from a cache
        (0, None, "0", False),
        (5, None, "0.40", True),  # C35: the cost of so many tokens is unknown
        (Usage(input_tokens=1_000_000), None, "2", True),  # at least what is known
        (Usage(output_tokens=3), None, "0.40", True),
    ],
)
async def test_c35_a_success_costs_what_is_known_else_what_it_held(
    database: Database, usage: int | Usage, cost: str | None, posted: str, estimated: bool
) -> None:
    """C35, B62: an unknown cost is the hold, flagged; an explicit 0 is 0; unknown tokens are None."""
    async with opened(database) as (limiter, ledger, _):
        reservation = await limiter.pre_commit(SCOPE, spend=spend("0.40", model="big"))
        await limiter.settle_success(reservation, usage, cost=None if cost is None else usd(cost))
        row = await only_row(ledger)
        assert (row.cost, row.estimated) == (usd(posted), estimated)
        assert (row.model, row.price_version, row.key) == ("big", "v1", "api_key:alice")
        assert row.budget_keys == ("user:alice",)
        if isinstance(usage, Usage):
            assert row.usage == usage
        assert await ledger.spent(ALICE) == usd(posted)


async def test_c35_an_unknown_price_is_an_error_or_a_stated_default(database: Database) -> None:
    """C35: a model without a price is refused before anything counts, never free; a stated hold is one."""
    async with opened(database) as (limiter, ledger, _):
        for estimate in (None, Usage(1, 1)):
            with pytest.raises(UnknownPrice, match="nobody's"):
                await limiter.pre_commit(SCOPE, spend=Spend((ALICE,), "nobody's", estimate))
        assert [limit.used for limit in (await limiter.peek(SCOPE))[0].limits] == [0, 0, 0]
        reservation = await limiter.pre_commit(SCOPE, spend=spend("0.40", model="nobody's"))
        await reservation.settle_success(Usage(10, 10))
        row = await only_row(ledger)
        assert (row.cost, row.estimated, row.price_version) == (usd("0.40"), True, None)


async def test_b62_without_a_budget_it_is_logged_all_the_same(database: Database) -> None:
    """B62: `Spend(())` only logs: every way to resolve it leaves one row, a cancellation none."""
    async with opened(database) as (limiter, ledger, _):
        for verb in ("settle", "close", "abandon", "cancel"):
            reservation = await limiter.pre_commit(
                SCOPE, request_id=verb, spend=Spend((), "big", metadata={"tags": ["é\0"]})
            )
            if verb == "settle":
                await reservation.settle_success(Usage(10, 20))
            elif verb == "close":
                await reservation.close_reserved_only()
            elif verb == "abandon":
                await reservation.abandon()
            else:
                await reservation.cancel()
        rows = await ledger.rows()
        assert [(row.request_id, row.outcome, row.unsettled) for row in rows] == [
            ("settle", "settled", False),
            ("close", "closed", False),
            ("abandon", "abandoned", True),
        ]
        assert [row.usage for row in rows] == [Usage(10, 20), Usage(), Usage()]
        assert rows[0].metadata == {"tags": ["é\0"]}
        assert rows[0].at == datetime.fromtimestamp(NOON, UTC)


@pytest.mark.parametrize(("unknown", "posted"), [("held", "0.4"), ("nothing", "0")])
async def test_a_close_posts_what_was_held_or_nothing(
    database: Database, unknown: str, posted: str
) -> None:
    """Close posts the pending amount or nothing, by choice; what is known of the usage in any case (B65)."""
    async with opened(database, unknown=unknown) as (limiter, ledger, _):
        closed = await limiter.pre_commit(spend=spend("0.4", model="big"))
        await closed.close_reserved_only()
        assert await ledger.spent(ALICE) == usd(posted)

        async def cut() -> AsyncIterator[object]:
            yield {
                "type": "message_start",
                "message": {"usage": {"input_tokens": 500_000, "output_tokens": 1}},
            }

        streamed = await limiter.pre_commit(spend=spend("0.4", model="big"))
        async for _ in streamed.stream(cut(), dialect="anthropic"):
            pass
        assert await ledger.spent(ALICE) == usd(posted) + usd("1.000008")
        await adds_up(ledger)


async def test_observers_hear_of_both(database: Database) -> None:
    """A request that a budget refuses was refused, never admitted."""
    events: list[Event] = []
    ledger = database.ledger()
    await ledger.create()
    async with Limiter(ledger=ledger, observers=[events.append]) as limiter:
        with pytest.raises(BudgetExceeded):
            await limiter.pre_commit(SCOPE, request_id="r", spend=spend("11"))
        await (await limiter.pre_commit(SCOPE, spend=spend("9"))).cancel()
    assert [event.kind for event in events] == ["refused", "admitted", "cancelled"]


async def test_waiting_and_money(database: Database) -> None:
    """R18: who has waited for room in its limits is asked for money then, and gives the room back if it has none."""
    scope = Scope("k", Limits(rpm=1))
    async with opened(database) as (limiter, ledger, _):
        first = await limiter.pre_commit(scope, wait=5, spend=spend("9"))
        await first.cancel()
        with pytest.raises(BudgetExceeded):
            await limiter.pre_commit(scope, wait=5, spend=spend("11"))
        assert (await limiter.peek(scope))[0]["requests"].used == 0
        await adds_up(ledger)


async def test_c48_a_request_that_waited_is_of_the_day_on_which_it_was_admitted(
    database: Database,
) -> None:
    """C48: period, price and expiry are those of the moment of admission, not of the question before the wait."""
    daily = Budget("k", usd(1), "daily")
    rates = {"input": 1, "output": 1}
    prices = PriceList(
        {
            "m": [
                {**rates, "until": "2026-04-02"},
                {**rates, "input": 2, "from": "2026-04-02", "version": "new"},
            ]
        }
    )
    scope = Scope("k", Limits(concurrency=1))
    clock = ManualClock(at("2026-04-01T23:59:00Z"))
    ledger = database.ledger(clock=clock, timeout=60)
    await ledger.create()
    async with Limiter(MemoryBackend(clock=clock), ledger=ledger, prices=prices) as limiter:
        first = await limiter.pre_commit(scope, spend=Spend((daily,), "m"))
        spend = Spend((daily,), "m", Usage(100_000, 0))
        waits = asyncio.ensure_future(limiter.pre_commit(scope, wait=600, spend=spend))
        for _turn in range(20):
            await asyncio.sleep(0)
        assert limiter._office.desk.queues
        clock.set(at("2026-04-02T00:00:10Z"))
        assert await first.settle_success(1, cost=usd(1))  # yesterday's money is spent
        second = await waits
        assert (await ledger.standing(daily)).pending == usd("0.2")
        assert await second.settle_success(Usage(50_000, 0))
        rows = await ledger.rows()
        assert [(row.at.day, row.cost, row.price_version) for row in rows] == [
            (1, usd(1), "1"),
            (2, usd("0.1"), "new"),
        ]
        await adds_up(ledger)


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


async def test_what_cannot_be_spent() -> None:
    """A limiter without a ledger, without prices, or with prices in another currency says so."""
    with pytest.raises(ValueError, match="ledger"):
        await Limiter().pre_commit(SCOPE, spend=Spend(()))
    reservation = await Limiter.disabled().pre_commit(SCOPE, spend=Spend(()))
    assert await reservation.settle_success(1)  # B46
    limiter = Limiter(ledger=Ledger("sqlite://"))
    with pytest.raises(ValueError, match="prices"):
        await limiter.pre_commit(SCOPE, spend=Spend((), "big", Usage(1, 1)))
    limiter = Limiter(ledger=Ledger("sqlite://"), prices=PRICES)
    with pytest.raises(ValueError, match="model"):
        await limiter.pre_commit(SCOPE, spend=Spend((), None, Usage(1, 1)))
    euros = Budget("k", usd(1), "total", currency="EUR")
    with pytest.raises(ValueError, match="USD"):
        await limiter.pre_commit(SCOPE, spend=Spend((euros,), "big"))
    with pytest.raises(TypeError, match="Spend"):
        await limiter.pre_commit(SCOPE, spend=ALICE)  # type: ignore[arg-type]
