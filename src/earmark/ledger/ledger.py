"""The ledger: budgets checked and held, costs posted, and one log that says what was spent."""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Any, Final, Literal, TypeVar, get_args

from sqlalchemy import MetaData
from sqlalchemy.engine import URL
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from earmark.budgets import Budget, check_zone
from earmark.clock import Clock
from earmark.core.money import decimal_of, nano_of
from earmark.core.settlement import UNSENT
from earmark.errors import BackendUnavailable
from earmark.ids import name_of, next_id
from earmark.ledger.answers import Drift, LedgerHealth, Standing, SummaryLine, UsageRow
from earmark.ledger.charge import Charge, Resolution, withdrawal
from earmark.ledger.counting import NoFirstRow
from earmark.ledger.expiry import post_expired
from earmark.ledger.failures import TooMuch, is_too_much
from earmark.ledger.line import Work
from earmark.ledger.owed import Owed
from earmark.ledger.periods import END, interval_of, moment
from earmark.ledger.reading import By, Filter, Reading
from earmark.ledger.rows import Held, adopt
from earmark.ledger.store import PAUSE, Store, Unreachable, schemas_of
from earmark.ledger.tables import Tables
from earmark.ledger.writing import Writing
from earmark.limits import MICROSECONDS, check_key, to_microseconds
from earmark.logs import about
from earmark.shielding import finish, in_trio

logger = logging.getLogger("earmark.ledger")

Result = TypeVar("Result")

UnknownCost = Literal["held", "nothing"]

SWEEP_SECONDS: Final = 60
"""How often a ledger that is used looks for amounts whose holders are gone; whoever asks it looks first."""

CLOSING_SECONDS: Final = 5.0
"""How long `aclose` tries to deliver what the database is owed."""

_LONGEST_PAUSE: Final = 10.0


class Ledger:
    """Spend in SQL: an append-only log, running totals that it can be recomputed into, and what is pending.

    Args:
        database: a URL (`sqlite:///spend.db`, `postgresql://…`; the drivers are aiosqlite and asyncpg unless it
            names another), or an async engine of SQLAlchemy, which serves one event loop.
        metadata: where its tables are described, for Alembic; by default in a `MetaData` of its own.
        prefix: what the names of its tables begin with.
        clock: a callable that returns seconds since the epoch; by default this process's wall clock.
        expiry: seconds after which an amount that nobody resolved is posted as it stands.
        timeout: seconds that a transaction may take before the database counts as out of reach.
        allowance: what may be admitted during one outage without asking the database, in all and in any currency's
            units; None: nothing, `BackendUnavailable` is raised.
        unknown: what a request costs whose outcome is unknown (`close_reserved_only`): what it `held`, or `nothing`.
            What is known of its usage it costs in any case.
        outbox: how many resolutions are kept for a database that cannot be reached.

    Raises:
        ValueError: an argument out of its range, or a database of another kind.
    """

    def __init__(
        self,
        database: str | URL | AsyncEngine,
        *,
        metadata: MetaData | None = None,
        prefix: str = "earmark_",
        clock: Clock | None = None,
        expiry: float = 3_600.0,
        timeout: float = 5.0,
        allowance: Decimal | None = None,
        unknown: UnknownCost = "held",
        outbox: int = 10_000,
    ) -> None:
        if unknown not in get_args(UnknownCost):
            msg = f"unknown must be one of {', '.join(get_args(UnknownCost))}, not {unknown!r}"
            raise ValueError(msg)
        if type(outbox) is not int or outbox < 1:
            msg = f"outbox must be a number of resolutions, at least 1, not {outbox!r}"
            raise ValueError(msg)
        self.tables: Final = Tables(metadata, prefix, schemas=schemas_of(database))
        self._clock = clock
        expiry_us = to_microseconds("expiry", expiry)
        self._store = Store(database, to_microseconds("timeout", timeout) / MICROSECONDS)
        self._writing = Writing(
            self.tables, self._store.dialect, expiry_us, keeps=unknown == "held"
        )
        self._reading = Reading(self.tables, self._writing.counting)
        self._allowance = 0 if allowance is None else nano_of("allowance", allowance)
        self._allowed = 0
        self._owed = Owed(outbox)
        self._sweep_at: int | None = None
        self._retries: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[None]] = (
            weakref.WeakKeyDictionary()
        )

    def now(self) -> int:
        """Microseconds since the epoch, by this ledger's clock."""
        return (
            time.time_ns() // 1_000 if self._clock is None else round(self._clock() * MICROSECONDS)
        )

    async def create(self) -> None:
        """Make the tables that are not there yet."""
        make: Work[None] = partial(AsyncConnection.run_sync, fn=self.tables.create)
        await self._asked(finish(partial(self._store.write, make, patient=True)))

    async def hold(self, charge: Charge) -> None:
        """Set a charge's amount aside, or refuse it.

        Raises:
            BudgetExceeded: a budget has no room.
            RequestIdConflict: the request id holds something else.
            ValueError: together with what is pending it is more than a ledger can count.
            BackendUnavailable: the database cannot be reached, and no allowance is left.
        """
        await self._tidy()
        try:
            await finish(self._hold, charge)
        except Unreachable as outage:
            self._admit_unsaid(charge, outage)
        except BaseException:
            charge.gone = True
            raise

    async def _hold(self, charge: Charge) -> None:
        undoing = withdrawal(charge.request_id, charge.asker)
        try:
            held = await self._write(partial(self._writing.hold, charge=charge))
        except Unreachable as outage:
            if outage.asked:  # it may have been held
                self._owe(undoing)
            raise
        if held is not None:
            adopt(charge, held)
        if charge.gone:  # and has waited as long as it could
            await self.resolve(undoing)

    def _admit_unsaid(self, charge: Charge, outage: Unreachable) -> None:
        """Admit without the database, as far as the allowance goes."""
        asked = max(charge.amount, 1)
        possible = all(
            budget.limit_nano is None or asked <= budget.limit_nano for budget in charge.budgets
        )
        if not possible or self._allowed + asked > self._allowance:
            msg = f"the ledger cannot be reached: {outage}"
            raise BackendUnavailable(msg) from outage
        self._allowed += asked
        charge.unsaid = True
        charge.reservation = name_of(next_id())  # what may have been held is another's, or undone

    async def resolve(self, told: Resolution) -> bool:
        """Post what a charge has cost, or give it back; True iff it was open.

        Where the database cannot be reached it is owed to it, and the answer is True.
        """
        if told.charge.unsaid and told.verb in UNSENT:
            return True
        try:
            return await self._post(partial(self._writing.resolve, told=told, now=self.now()))
        except Unreachable:
            self._owe(told)
            return True

    async def _post(self, work: Callable[..., Coroutine[Any, Any, bool]]) -> bool:
        """Post, or as much as can be counted: what has happened is logged, whatever somebody says that it costs."""
        try:
            return await self._write(work)
        except TooMuch:
            logger.warning("a cost is posted as far as it can be", extra=about("posting_capped"))
            return await self._write(partial(work, capped=True))

    async def correct(self, request_id: str, cost: Decimal) -> bool:
        """Have a request cost what the provider's bill says, in the period of its admission.

        Args:
            request_id: the request's; of several that have had this id, one after another, the last is meant. A row's
                `reservation` names any of them.
            cost: what it has cost.

        Returns:
            True iff this changes anything.

        Raises:
            ValueError: a bad cost, one more than the ledger can count, or there is no usage row of the request.
            BackendUnavailable: the database cannot be reached.
        """
        nano = nano_of("cost", cost)
        work: Work[bool] = partial(
            self._writing.correct,
            name=check_key("request_id", request_id),
            cost=nano,
            now=self.now(),
        )
        await self._tidy(look=True)  # it may be owed, or have expired
        return bool(await self._asked(finish(self._write, work)))

    async def spent(self, budget: Budget) -> Decimal:
        """What is posted in the current period of a budget."""
        return (await self.standing(budget)).spent

    async def standing(self, budget: Budget) -> Standing:
        """What a budget stands at in its current period."""
        await self._tidy(look=True)
        now = self.now()
        sums = await self._asked(
            self._store.read(partial(self._reading.sums, budget=budget, at=now))
        )
        ends = interval_of(budget, now).ends
        resets_at = None if ends == END else moment(ends)
        return Standing(budget, decimal_of(sums.posted), decimal_of(sums.pending), resets_at)

    async def rows(
        self,
        key: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        *,
        request_id: str | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> tuple[UsageRow, ...]:
        """Entries of the log, in the order in which they were made.

        Args:
            key: whose requests, or which budget key they count in; None: all.
            since: from this admission on; with a time zone.
            until: before this admission.
            request_id: those of one request.
            after: the `id` of the last row of the page before.
            limit: at most so many.
        """
        if type(limit) is not int or limit < 1:
            msg = f"limit must be a number of rows, at least 1, not {limit!r}"
            raise ValueError(msg)
        which = Filter(key, since, until)
        await self._tidy(look=True)
        work = partial(
            self._reading.rows, which=which, after=after, limit=limit, request_id=request_id
        )
        return await self._asked(self._store.read(work, patient=True))

    async def summary(
        self,
        key: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        by: Sequence[By] = ("day", "model", "key"),
        zone: str = "UTC",
    ) -> tuple[SummaryLine, ...]:
        """What was spent, in groups.

        Args:
            key: whose requests, or which budget key they count in; None: all.
            since: from this admission on; with a time zone.
            until: before this admission.
            by: what one line is of, in order: `day`, `model`, `key`; nothing: all in one line.
            zone: whose days.
        """
        if any(name not in get_args(By) for name in by) or len(set(by)) < len(by):
            msg = f"by must name {', '.join(get_args(By))}, each at most once, not {by!r}"
            raise ValueError(msg)
        which = Filter(key, since, until)
        work = partial(self._reading.summary, which=which, by=tuple(by), zone=check_zone(zone))
        await self._tidy(look=True)
        return await self._asked(self._store.read(work, patient=True))

    async def verify(self) -> tuple[Drift, ...]:
        """Recompute every total from the log; returns those that differ."""
        await self._tidy(look=True)
        return await self._asked(self._store.read(self._reading.verify, patient=True))

    def health(self) -> LedgerHealth:
        """Whether the database can be reached, and what it is owed."""
        return LedgerHealth(
            self._store.reason is None,
            self._store.reason,
            len(self._owed),
            self._owed.lost,
            decimal_of(self._allowed),
        )

    async def deliver(self) -> bool:
        """Try now to tell the database what it is owed; True iff nothing is owed any more."""
        while (told := self._owed.take()) is not None:
            delivered = False
            try:
                await self._post(partial(self._writing.resolve, told=told, now=self.now()))
                delivered = True
            except Unreachable:
                return False
            except Exception as error:  # noqa: BLE001 - it would be refused again
                delivered = True
                self._owed.lose(told, str(error))
            finally:
                self._owed.settle(told, delivered=delivered)
        return not self._owed

    async def aclose(self) -> None:
        """Deliver what the database is owed, for at most `CLOSING_SECONDS`, and close this loop's connections."""
        if not in_trio():  # what is open belongs to event loops of asyncio
            await finish(self._close)

    async def _close(self) -> None:
        retry = self._retries.pop(asyncio.get_running_loop(), None)
        if retry is not None:
            retry.cancel()
            await asyncio.wait([retry], timeout=CLOSING_SECONDS)  # what it was at is owed again
        if self._owed.deliverable:
            try:
                async with asyncio.timeout(CLOSING_SECONDS):
                    await self.deliver()
            except TimeoutError:
                pass
            if self._owed:
                logger.error(
                    "the ledger's database is still owed %d resolutions",
                    len(self._owed),
                    extra=about("ledger_owed", owed=len(self._owed)),
                )
        await self._store.aclose()

    async def _tidy(self, *, look: bool = False) -> None:
        """Tell the database what it is owed, and post what nobody resolved: there is no daemon that would."""
        if self._owed.deliverable and not self._store.is_down:
            await finish(self.deliver)
        now = self.now()
        if look or self._sweep_at is None or now >= self._sweep_at:
            self._sweep_at = now + SWEEP_SECONDS * MICROSECONDS
            with suppress(Unreachable):  # whoever asks something will hear of it
                await finish(self._post_expired, now)

    async def _post_expired(self, now: int) -> None:
        def post(held: Held) -> Coroutine[Any, Any, bool]:
            return self._post(partial(self._writing.expire, held=held, now=now))

        await post_expired(self.tables.pending, now, self._store.read, post)

    async def _write(self, work: Work[Result]) -> Result:
        while True:
            try:
                done = await self._store.write(work)
            except NoFirstRow as missing:
                for key in missing.keys:
                    first = partial(
                        self._writing.counting.make_first_row, key=key, currency=missing.currency
                    )
                    await self._store.write(first)
            except Exception as error:
                if is_too_much(error):
                    raise TooMuch from error
                raise
            else:
                self._allowed = 0  # the outage is over
                return done

    async def _asked(self, answer: Coroutine[Any, Any, Result]) -> Result:
        try:
            return await answer
        except Unreachable as outage:
            msg = f"the ledger cannot be reached: {outage}"
            raise BackendUnavailable(msg) from outage

    def _owe(self, told: Resolution) -> None:
        self._owed.add(told)
        loop = asyncio.get_running_loop()
        retry = self._retries.get(loop)
        if retry is None or retry.done():
            self._retries[loop] = loop.create_task(self._retry())

    async def _retry(self) -> None:
        pause = PAUSE
        while self._owed.deliverable:
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
            await self.deliver()
