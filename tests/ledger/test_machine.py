"""Random histories of a limiter with a ledger against a plain model, step by step, on both databases.

The model keeps lists, and sums them up anew for every question; it finds periods by comparing local dates. After each
step the log says what the model does, every total is the sum of the log, budgets stand at what the model says (one in
turn, and all at the end), and a limit whose admission was refused by money has what it had.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, TypeAlias
from zoneinfo import ZoneInfo

from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import delete
from sqlalchemy.ext.asyncio import AsyncConnection

from earmark import (
    BudgetExceeded,
    Limiter,
    Limits,
    MemoryBackend,
    RateLimited,
    Reservation,
    Scope,
    Usage,
)
from earmark.ledger import Budget, Ledger, Spend
from earmark.testing import ManualClock
from tests.ledgers import PRICES, Database
from tests.reached import Reached
from tests.scale import examples

HISTORIES: Final = 30
STEPS: Final = 24
RPM: Final = 2
EXPIRY: Final = 1_800
START: Final = 1_775_001_000.0  # 2026-03-31T23:50:00Z

BUDGETS: Final = (
    Budget("alice", Decimal(1), "daily"),
    Budget("alice", Decimal(3), "monthly", "Europe/Amsterdam"),
    Budget("team", Decimal(2), "weekly", "Asia/Tokyo"),
    Budget("team", None, "total"),
    Budget("model", Decimal(4), "total"),
)
SCOPE: Final = Scope("api_key:alice", Limits(rpm=RPM))
MONEY: Final = st.sampled_from(["0", "0.000000001", "0.25", "0.5", "0.75", "1", "2.5"]).map(Decimal)

Step: TypeAlias = tuple[Any, ...]

STEP: Final[st.SearchStrategy[Step]] = st.one_of(
    *[
        st.tuples(
            st.just("hold"),
            st.lists(st.sampled_from(BUDGETS), unique=True, min_size=1, max_size=4),
            st.none() | MONEY | st.just(Usage(100_000, 50_000)),
            st.booleans(),
            st.integers(1, 3),
        )
    ]
    * 3,
    *[st.tuples(st.just("settle"), st.integers(0, 5), MONEY | st.just(Usage(70_000, 1_000)))] * 2,
    st.tuples(st.sampled_from(["close", "abandon", "cancel"]), st.integers(0, 5)),
    st.tuples(st.just("correct"), st.integers(0, 9), MONEY),
    st.tuples(st.just("wait"), st.sampled_from([1, 61, EXPIRY, 43_200])),
)


@dataclass
class Open:
    """A request as the model knows it."""

    name: str
    at: float
    amount: Decimal
    budgets: tuple[Budget, ...]
    handle: Reservation
    over: bool = False  # somebody has resolved it
    cost: Decimal | None = None  # what the log says of it


def period(budget: Budget, at: float) -> object:
    """What two instants of one period have in common."""
    local = datetime.fromtimestamp(at, UTC).astimezone(ZoneInfo(budget.zone)).date()
    found: dict[str, Callable[[], object]] = {
        "daily": lambda: local,
        "weekly": lambda: local.isocalendar()[:2],
        "monthly": lambda: (local.year, local.month),
        "total": lambda: None,
    }
    return found[budget.period]()


@dataclass
class Driver:
    """Plays one history."""

    limiter: Limiter
    ledger: Ledger
    clock: ManualClock
    made: list[Open] = field(default_factory=list)
    admitted: list[float] = field(default_factory=list)  # when the limit counted a request
    marks: set[str] = field(default_factory=set)
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def sums(self, budget: Budget) -> tuple[Decimal, Decimal]:
        """What a budget should stand at: spent, pending."""
        now = self.clock()
        mine = [
            one
            for one in self.made
            if budget.key in {other.key for other in one.budgets}
            and period(budget, one.at) == period(budget, now)
        ]
        spent = sum((one.cost for one in mine if one.cost is not None), Decimal(0))
        pending = sum((one.amount for one in mine if one.cost is None and not one.over), Decimal(0))
        return spent, pending

    async def play(self, steps: list[Step]) -> None:
        for step in steps:
            await getattr(self, f"_{step[0]}")(*step[1:])
            self._expire()
            await self._check(BUDGETS[next(self.numbers) % len(BUDGETS)])
        await self._check(*BUDGETS)
        for one in self.made:
            await one.handle.close_reserved_only()

    def _expire(self) -> None:
        for one in self.made:
            if one.cost is None and not one.over and self.clock() >= one.at + EXPIRY:
                one.cost = one.amount
                self.marks.add("expiry")

    async def _check(self, *budgets: Budget) -> None:
        for budget in budgets:
            standing = await self.ledger.standing(budget)
            assert (standing.spent, standing.pending) == self.sums(budget), budget
        assert await self.ledger.verify() == ()
        logged = [one for one in self.made if one.cost is not None]
        rows = await self.ledger.rows(limit=1_000)
        assert {row.request_id for row in rows} == {one.name for one in logged}
        assert sum(row.revision == 0 for row in rows) == len(logged)
        for one in logged:
            assert sum(row.cost for row in rows if row.request_id == one.name) == one.cost
        minute = self.clock() // 60
        counted = sum(at // 60 == minute for at in self.admitted)
        assert (await self.limiter.peek(SCOPE))[0]["requests"].used == counted

    async def _wait(self, seconds: float) -> None:
        before = [period(budget, self.clock()) for budget in BUDGETS]
        self.clock.advance(seconds)
        if before != [period(budget, self.clock()) for budget in BUDGETS] and self.made:
            self.marks.add("turn of a period")

    async def _hold(
        self, budgets: list[Budget], estimate: Usage | Decimal | None, limited: bool, times: int
    ) -> None:
        for _ in range(times):
            await self._hold_one(budgets, estimate, limited=limited)

    async def _hold_one(
        self, budgets: list[Budget], estimate: Usage | Decimal | None, *, limited: bool
    ) -> None:
        amount = Decimal("0.6") if isinstance(estimate, Usage) else estimate or Decimal(0)
        limited_out = limited and (
            sum(at // 60 == self.clock() // 60 for at in self.admitted) >= RPM
        )
        refused = False
        for budget in budgets:
            spent, pending = self.sums(budget)
            limit = budget.limit
            if limit is not None:
                refused |= spent + pending + amount > limit or spent + pending >= limit
        name = f"r{next(self.numbers)}"
        spend = Spend(tuple(budgets), "big", estimate)
        scopes = (SCOPE,) if limited else ()
        try:
            handle = await self.limiter.pre_commit(*scopes, request_id=name, spend=spend)
        except RateLimited:
            assert limited_out
            self.marks.add("refusal by a limit")
        except BudgetExceeded:
            assert refused
            assert not limited_out
            self.marks.add("refusal by a budget")
        else:
            assert not refused
            assert not limited_out
            self.made.append(Open(name, self.clock(), amount, tuple(budgets), handle))
            if limited:
                self.admitted.append(self.clock())
            if len({budget.key for budget in budgets}) > 1:
                self.marks.add("several keys")

    def _nth(self, number: int) -> Open | None:
        return self.made[-1 - number % len(self.made)] if self.made else None

    async def _resolve(self, number: int, verb: str, cost: Decimal | None, argument: Any) -> None:
        one = self._nth(number)
        if one is None:
            return
        if verb == "settle":
            extra = {} if isinstance(argument, Usage) else {"cost": argument}
            usage = argument if isinstance(argument, Usage) else Usage(10, 10)
            won = await one.handle.settle_success(usage, **extra)
        elif verb == "close":
            won = await one.handle.close_reserved_only()
        elif verb == "abandon":
            won = await one.handle.abandon()
        else:
            won = await one.handle.cancel()
        assert won == (not one.over)
        if one.over:
            self.marks.add("second resolver")
            return
        one.over = True
        if one.cost is not None:
            self.marks.add("late resolver")
        expired = one.cost is not None
        if verb == "cancel":
            one.cost = Decimal(0) if expired else None
            self.marks.add("cancellation")
            if one.at // 60 == self.clock() // 60 and one.at in self.admitted and one.handle.scopes:
                self.admitted.remove(one.at)  # still in the minute: its request is given back
        else:
            one.cost = one.amount if cost is None else cost

    async def _settle(self, number: int, what: Usage | Decimal) -> None:
        cost = Decimal("0.148") if isinstance(what, Usage) else what
        await self._resolve(number, "settle", cost, what)

    async def _close(self, number: int) -> None:
        await self._resolve(number, "close", None, None)

    async def _abandon(self, number: int) -> None:
        await self._resolve(number, "abandon", None, None)

    async def _cancel(self, number: int) -> None:
        await self._resolve(number, "cancel", None, None)

    async def _correct(self, number: int, cost: Decimal) -> None:
        one = self._nth(number)
        if one is None or one.cost is None:
            return
        assert await self.ledger.correct(one.name, cost) == (cost != one.cost)
        if cost != one.cost:
            one.cost = cost
            one.over = True  # the bill has the last word
            self.marks.add("correction")


# What chance all but never misses in so few histories; the rest is counted, and has tests of its own.
MUST_MEET: Final = (
    "refusal by a budget",
    "expiry",
    "second resolver",
    "correction",
    "turn of a period",
    "several keys",
)


def test_random_histories(database: Database) -> None:
    """R2, R5, B57–B60, C24, C48: limiter and ledger do what the plain model does, and the sums are the log's."""
    reached = Reached(f"ledger on {database.name}")
    wanted = examples(HISTORIES)
    url = "sqlite://" if database.name == "sqlite" else database.url

    async def make() -> Ledger:
        await ledger.create()
        return ledger

    async def clear() -> None:
        tables = ledger.tables

        async def work(connection: AsyncConnection) -> None:
            for table in (tables.lines, tables.usage, tables.pending, tables.totals):
                await connection.execute(delete(table))

        await ledger._store.write(work)

    async def one_history(steps: list[Step]) -> set[str]:
        clock.set(START + next(epochs) * 40 * 86_400)  # a history takes less
        await clear()
        driver = Driver(
            Limiter(MemoryBackend(clock=clock), ledger=ledger, prices=PRICES), ledger, clock
        )
        await driver.play(steps)
        return driver.marks

    clock = ManualClock(START)
    epochs = itertools.count()
    ledger = Ledger(url, prefix=database.prefix, clock=clock, expiry=EXPIRY)

    with asyncio.Runner() as runner:
        runner.run(make())

        @settings(max_examples=wanted + 2)
        @given(st.lists(STEP, min_size=STEPS // 2, max_size=STEPS * 3 // 2))
        def play(steps: list[Step]) -> None:
            marks = runner.run(one_history(steps))
            reached.count("steps", len(steps))
            reached.history(marks)

        try:
            play()
        finally:
            runner.run(ledger.aclose())
    assert reached.histories >= wanted
    reached.require(0.01, MUST_MEET)
