"""When a period begins and ends: tables of real clock changes, and the law that periods are a partition of time."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import delete, text
from sqlalchemy.ext.asyncio import AsyncConnection

from earmark import BudgetExceeded
from earmark.ledger import Budget, Spend
from earmark.ledger.periods import ALWAYS, interval_of, microseconds, moment
from earmark.ledger.statements import Statement
from tests.ledgers import Database, opened, usd

ZONES = (
    *(
        "UTC",
        "Asia/Tokyo",
        "Europe/Amsterdam",
        "America/New_York",
        "Asia/Kathmandu",
        "Pacific/Apia",
    ),
    *("America/Sao_Paulo", "Africa/Cairo", "America/St_Johns", "Australia/Lord_Howe", "Asia/Gaza"),
)


def at(text: str) -> int:
    return microseconds(datetime.fromisoformat(text))


def budget(period: Any, zone: str) -> Budget:
    return Budget("k", None, period, zone)


@pytest.mark.parametrize(
    ("period", "zone", "now", "starts", "ends"),
    [
        # C49: the month in Tokyo turns at 15:00 UTC.
        ("monthly", "Asia/Tokyo", "2026-07-31T14:59:59Z", "2026-06-30T15:00Z", "2026-07-31T15:00Z"),
        ("monthly", "Asia/Tokyo", "2026-07-31T15:00:00Z", "2026-07-31T15:00Z", "2026-08-31T15:00Z"),
        # C49: days of 23 and of 25 hours; the first instant is in, the last is not.
        (
            "daily",
            "Europe/Amsterdam",
            "2026-03-29T12:00Z",
            "2026-03-28T23:00Z",
            "2026-03-29T22:00Z",
        ),
        (
            "daily",
            "Europe/Amsterdam",
            "2026-10-25T12:00Z",
            "2026-10-24T22:00Z",
            "2026-10-25T23:00Z",
        ),
        (
            "daily",
            "Europe/Amsterdam",
            "2026-10-24T22:00Z",
            "2026-10-24T22:00Z",
            "2026-10-25T23:00Z",
        ),
        (
            "daily",
            "Europe/Amsterdam",
            "2026-10-25T23:00Z",
            "2026-10-25T23:00Z",
            "2026-10-26T23:00Z",
        ),
        # B58: midnight, to the microsecond.
        ("daily", "UTC", "2026-04-01T23:59:59.999999Z", "2026-04-01T00:00Z", "2026-04-02T00:00Z"),
        ("daily", "UTC", "2026-04-02T00:00Z", "2026-04-02T00:00Z", "2026-04-03T00:00Z"),
        # Weeks begin on Monday, months have their own lengths.
        ("weekly", "UTC", "2026-04-05T23:59Z", "2026-03-30T00:00Z", "2026-04-06T00:00Z"),
        ("weekly", "UTC", "2026-04-06T00:00Z", "2026-04-06T00:00Z", "2026-04-13T00:00Z"),
        ("monthly", "UTC", "2028-02-29T12:00Z", "2028-02-01T00:00Z", "2028-03-01T00:00Z"),
        ("monthly", "UTC", "2026-12-31T12:00Z", "2026-12-01T00:00Z", "2027-01-01T00:00Z"),
        # A day that began at one o'clock, since the clock was put forward over midnight.
        (
            "daily",
            "America/Sao_Paulo",
            "2017-10-15T12:00Z",
            "2017-10-15T03:00Z",
            "2017-10-16T02:00Z",
        ),
        # A clock that was put back over midnight, one minute past it: yesterday came once more.
        (
            "daily",
            "America/St_Johns",
            "2010-11-07T03:00Z",
            "2010-11-07T02:30Z",
            "2010-11-08T03:30Z",
        ),
        # A day that was left out.
        ("daily", "Pacific/Apia", "2011-12-30T10:00Z", "2011-12-30T10:00Z", "2011-12-31T10:00Z"),
        ("daily", "Pacific/Apia", "2011-12-30T09:59Z", "2011-12-29T10:00Z", "2011-12-30T10:00Z"),
    ],
)
def test_c49_b58_a_period_begins_and_ends_by_its_calendar(
    period: str, zone: str, now: str, starts: str, ends: str
) -> None:
    """C49, B58."""
    assert interval_of(budget(period, zone), at(now)) == (at(starts), at(ends))


def test_total_has_no_end() -> None:
    """B58: total has no start."""
    assert interval_of(budget("total", "UTC"), 0) == ALWAYS


@given(
    st.sampled_from(["daily", "weekly", "monthly"]),
    st.sampled_from(ZONES),
    st.integers(631_152_000_000_000, 2_143_238_400_000_000),  # from 1990 to 2037
)
def test_c49_periods_are_a_partition_of_time(period: str, zone: str, now: int) -> None:
    """C49: every instant is in one period, the next one begins where it ends, and each begins with a local day."""
    found = interval_of(budget(period, zone), now)
    assert found.starts <= now < found.ends
    assert interval_of(budget(period, zone), found.starts) == found
    assert interval_of(budget(period, zone), found.ends - 1) == found
    assert interval_of(budget(period, zone), found.ends).starts == found.ends
    place = ZoneInfo(zone)
    first, before = (
        moment(instant).astimezone(place) for instant in (found.starts, found.starts - 1)
    )
    assert before.date() < first.date()
    if period == "weekly":
        assert first.weekday() == 0 or first.date() - before.date() > timedelta(days=1)
    if period == "monthly":
        assert first.month != before.month


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_c49_an_exhausted_month_is_over_where_its_zone_says(
    database: Database, anyio_backend: str
) -> None:
    """C49: denied at 14:59:59 UTC, admitted at 15:00:00, which is 1 August in Tokyo."""
    tokyo = Budget("k", Decimal(5), "monthly", "Asia/Tokyo")
    async with opened(database) as (limiter, ledger, clock):
        clock.set(at("2026-07-31T14:59:59Z") / 1e6)
        first = await limiter.pre_commit(spend=Spend((tokyo,)))
        await first.settle_success(1, cost=usd(5))
        with pytest.raises(BudgetExceeded) as refused:
            await limiter.pre_commit(spend=Spend((tokyo,)))
        assert refused.value.resets_at == moment(at("2026-07-31T15:00Z"))
        assert refused.value.retry_after == 1
        clock.advance(1)
        async with await limiter.pre_commit(spend=Spend((tokyo,))):
            assert await ledger.spent(tokyo) == 0


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_c48_a_cost_is_in_the_period_of_its_admission(
    database: Database, anyio_backend: str
) -> None:
    """C48: settled after the month's end it is spent before it; an old hold that is released leaves the new month."""
    monthly = Budget("k", Decimal(100), "monthly")
    async with opened(database) as (limiter, ledger, clock):
        clock.set(at("2026-03-31T23:59:00Z") / 1e6)
        late = await limiter.pre_commit(spend=Spend((monthly,)))
        held = await limiter.pre_commit(spend=Spend((monthly,), estimate=usd(4)))
        clock.set(at("2026-04-01T00:00:40Z") / 1e6)
        assert await late.settle_success(1, cost=usd(5))
        assert await ledger.spent(monthly) == 0
        new = await limiter.pre_commit(spend=Spend((monthly,)))
        assert await new.settle_success(1, cost=usd(9))
        clock.set(at("2026-04-01T00:01:00Z") / 1e6)
        assert await held.cancel()
        standing = await ledger.standing(monthly)
        assert (standing.spent, standing.pending) == (usd(9), usd(0))
        (day_before, today) = await ledger.summary(by=("day",))
        assert (str(day_before.day), day_before.cost) == ("2026-03-31", usd(5))
        assert (str(today.day), today.cost) == ("2026-04-01", usd(9))
        assert await ledger.verify() == ()


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_budget_that_is_new_finds_what_was_spent_before(
    database: Database, anyio_backend: str
) -> None:
    """One source of truth: whichever budgets a request passed, its cost counts in every period of the key."""
    async with opened(database) as (limiter, ledger, _):
        monthly, daily = Budget("k", None, "monthly"), Budget("k", Decimal(3), "daily")
        first = await limiter.pre_commit(spend=Spend((monthly,)))
        await first.settle_success(1, cost=usd(2))
        held = await limiter.pre_commit(spend=Spend((monthly,), estimate=usd(1)))
        assert await ledger.spent(daily) == 2
        with pytest.raises(BudgetExceeded) as refused:
            await limiter.pre_commit(spend=Spend((daily,)))
        assert (refused.value.spent, refused.value.pending) == (usd(2), usd(1))
        await held.cancel()
        async with await limiter.pre_commit(spend=Spend((daily,), estimate=usd(1))):
            pass
        third = await limiter.pre_commit(spend=Spend((monthly,)))
        await third.settle_success(1, cost=usd(7))
        assert await ledger.spent(daily) == await ledger.spent(monthly) == 10
        assert await ledger.verify() == ()


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_period_begins_without_the_log(database: Database, anyio_backend: str) -> None:
    """The cost of a check does not grow with the log: a budget that is new in the middle of its period reads none."""
    kathmandu = Budget("k", Decimal(20), "daily", "Asia/Kathmandu")  # 5:45 before UTC
    async with opened(database) as (limiter, ledger, clock):
        for number in range(8):
            clock.set(at("2026-04-01T17:00:00Z") / 1e6 + number * 1_000)
            one = await limiter.pre_commit(spend=Spend((Budget("k", None, "total"),)))
            await one.settle_success(1, cost=usd(number + 1))
        held = await limiter.pre_commit(spend=Spend((budget("total", "UTC"),), estimate=usd(2)))
        assert await ledger.verify() == ()

        async def forget(connection: AsyncConnection) -> None:
            await connection.execute(delete(ledger.tables.lines))

        await ledger._store.write(forget)
        # It began at 18:15, after the first five.
        assert await ledger.spent(kathmandu) == 6 + 7 + 8
        with pytest.raises(BudgetExceeded) as refused:
            await limiter.pre_commit(spend=Spend((kathmandu,)))
        assert (refused.value.spent, refused.value.pending) == (usd(21), usd(2))
        await held.cancel()


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_no_statement_of_a_check_scans_a_table(
    database: Database, anyio_backend: str
) -> None:
    """No table scan: every statement of a check and of a settlement finds its rows by an index."""
    async with opened(database) as (_, ledger, _clock):
        writing = ledger._writing
        mine = [*vars(writing._changes).values(), *vars(writing.counting).values()]
        statements = [one for one in mine if isinstance(one, Statement)]
        assert len(statements) >= 8
        plans: list[str] = []

        async def explain(connection: AsyncConnection) -> None:
            for number, statement in enumerate(statements):
                words = statement._text
                if database.name == "sqlite":
                    values = dict.fromkeys(re.findall(r":(\w+)", words))
                    found = await connection.execute(text(f"EXPLAIN QUERY PLAN {words}"), values)
                else:
                    nulls = ", ".join(["NULL"] * len({*re.findall(r"\$\d+", words)}))
                    for setting in ("enable_seqscan = off", "plan_cache_mode = force_generic_plan"):
                        await connection.exec_driver_sql(f"SET LOCAL {setting}")
                    await connection.exec_driver_sql(f"PREPARE p{number} AS {words}")
                    found = await connection.exec_driver_sql(
                        f"EXPLAIN EXECUTE p{number}({nulls})".replace("()", "")
                    )
                plans.extend(str(row[-1]) for row in found)

        await ledger._store.read(explain)
        assert any("earmark_" in plan or database.prefix in plan for plan in plans)
        assert [plan for plan in plans if re.search(_SCAN, plan)] == []


_SCAN = r"^SCAN (?!CONSTANT|.*VIRTUAL TABLE)|Seq Scan"
