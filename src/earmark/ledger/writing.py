"""The transactions that write: hold, resolve, correct. Each is one function of a connection that has begun one.

What each does to the tables, and the order of their locks, is in `changes`; what each means is here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Dialect, case, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from earmark.core.money import MAX_NANO
from earmark.core.settlement import UNSENT
from earmark.errors import RequestIdConflict
from earmark.ledger.charge import Charge, Resolution
from earmark.ledger.costing import posted
from earmark.ledger.counting import Count, Counting
from earmark.ledger.failures import Again
from earmark.ledger.in_postgresql import InPostgreSQL
from earmark.ledger.in_sqlite import InSQLite
from earmark.ledger.judging import judge
from earmark.ledger.periods import ALWAYS, interval_of
from earmark.ledger.rows import (
    Held,
    entry_row,
    held_by,
    held_of,
    held_of_entry,
    pending_row,
    read_price,
    token_columns,
    written_price,
)
from earmark.ledger.tables import Tables
from earmark.prices import Price

OUTCOMES: Final = {
    "settle": "settled",
    "close": "closed",
    "abandon": "abandoned",
    "cancel": "cancelled",
}
EXPIRED: Final = "expired"
CORRECTED: Final = "corrected"

_NEVER: Final = -1
"""When a row expires that is there for one transaction alone."""

_LONGEST: Final = 1_000
_MANY: Final = "*"
"""Instead of so many names: those whom nobody tells apart, so that none of them is the last."""


class Writing:
    """The transactions on one ledger's tables.

    Args:
        tables: the tables.
        dialect: that of its database.
        expiry_us: microseconds for which an amount is pending.
        keeps: whether a request whose outcome is unknown costs what it held.
    """

    def __init__(self, tables: Tables, dialect: Dialect, expiry_us: int, *, keeps: bool) -> None:
        self.counting = Counting(tables, dialect)
        self._tables = tables
        self._expiry_us = expiry_us
        self._keeps = keeps
        changes = InSQLite if dialect.name == "sqlite" else InPostgreSQL
        self._changes = changes(tables, dialect, self.counting)
        self._insert = sqlite.insert if dialect.name == "sqlite" else postgresql.insert

    async def hold(self, connection: AsyncConnection, charge: Charge) -> Held | None:
        """Set a charge's amount aside; or return what is pending under its request id, which is its from then on.

        Raises:
            BudgetExceeded: a budget has no room.
            RequestIdConflict: the request id holds something else.
        """
        count = Count(charge.keys, charge.currency, charge.at, pending=charge.amount)
        row = pending_row(charge, charge.at + self._expiry_us)
        totals = await self._changes.put(connection, row, count)
        if totals is None:
            return await self._adopt(connection, charge)
        if charge.asker != charge.reservation:
            await self._name_anew(connection, charge)
        for budget in charge.budgets:
            interval = interval_of(budget, charge.at)
            if (budget.key, interval) not in totals:
                totals[budget.key, interval] = await self.counting.begin(
                    connection, budget.key, charge.currency, interval
                )
        judge(charge, totals)
        return None

    async def _name_anew(self, connection: AsyncConnection, charge: Charge) -> None:
        """Where the log has what the limits gave it by now, which may be over since, this is another reservation."""
        pending, usage = self._tables.pending, self._tables.usage
        logged = select(usage.c.id).where(usage.c.reservation == charge.reservation).limit(1)
        if (await connection.execute(logged)).one_or_none() is not None:
            charge.reservation = charge.asker
            mine = pending.update().where(pending.c.request_id == charge.request_id)
            await connection.execute(mine.values(reservation=charge.reservation))

    async def _adopt(self, connection: AsyncConnection, charge: Charge) -> Held:
        """The request id is open: the same request has come before, through another process it may be."""
        pending = self._tables.pending
        one_more = pending.c.askers + f" {charge.asker}"
        askers = case((func.length(pending.c.askers) < _LONGEST, one_more), else_=_MANY)
        mark = (
            pending.update()
            .where(pending.c.request_id == charge.request_id)
            .values(askers=askers)
            .returning(*pending.c)
        )
        row = (await connection.execute(mark)).one_or_none()
        if row is None:  # it was resolved a moment ago: the id is free
            raise Again
        held = held_of(row)
        mine = (charge.keys, charge.model, charge.currency, charge.amount)
        if mine != (held.keys, held.model, held.currency, held.amount):
            raise RequestIdConflict(charge.request_id)
        return held

    async def resolve(
        self, connection: AsyncConnection, told: Resolution, now: int, *, capped: bool = False
    ) -> bool:
        """Post what a charge has cost, or give it back; True iff it was open.

        Args:
            connection: of the transaction.
            told: how it is resolved.
            now: in microseconds.
            capped: only as much of the cost as the totals can count.
        """
        charge = told.charge
        if charge.unsaid:
            return told.verb in UNSENT or await self._post_unsaid(
                connection, told, now, capped=capped
            )
        if told.verb == "withdraw":
            return await self._withdraw(connection, told, now)
        held = held_by(charge) if charge.placed else await self._pending(connection, charge)
        if held is None:
            done = False
        elif told.verb == "cancel":
            done = await self._take(connection, held)
        else:
            entry = self._entry(held, told, now, OUTCOMES[told.verb])
            done = await self._post(connection, held, entry, capped=capped)
        return done or await self._resolve_late(connection, told, now, capped=capped)

    async def _withdraw(self, connection: AsyncConnection, told: Resolution, now: int) -> bool:
        """Undo a hold whose answer its asker has not heard, once nobody is left who was given it (R9)."""
        pending = self._tables.pending
        charge = told.charge
        row = pending_row(Charge(charge.request_id, charge.reservation), _NEVER)
        # Its commit may be on its way yet, in a connection that was given up. A row of the same id waits for that.
        look = (
            self._insert(pending)
            .values(row)
            .on_conflict_do_update(
                index_elements=[pending.c.request_id], set_={"askers": pending.c.askers}
            )
            .returning(*pending.c)
        )
        found = (await connection.execute(look)).one()
        if found.expires_us == _NEVER:
            await self._take(connection, held_of(found))
        elif charge.reservation in (askers := found.askers.split()):
            others = [name for name in askers if name != charge.reservation]
            if not others:
                return await self._take(connection, held_of(found))
            less = pending.update().where(pending.c.request_id == charge.request_id)
            await connection.execute(less.values(askers=" ".join(others)))
            return False
        return await self._resolve_late(connection, told, now)

    async def expire(
        self, connection: AsyncConnection, held: Held, now: int, *, capped: bool = False
    ) -> bool:
        """Post what a holder that is gone has held, as it stands; False: somebody has resolved it by now."""
        told = Resolution(Charge(held.request_id, held.reservation), "abandon")
        entry = {**self._entry(held, told, now, EXPIRED), "price": written_price(held.price)}
        return await self._post(connection, held, entry, capped=capped)

    async def correct(self, connection: AsyncConnection, name: str, cost: int, now: int) -> bool:
        """Have a request cost what its bill says; False: it does already.

        Raises:
            ValueError: there is no row of it.
        """
        usage = self._tables.usage
        query = select(usage.c.reservation).where(usage.c.revision == 0)
        latest = query.where(usage.c.request_id == name).order_by(usage.c.id.desc()).limit(1)
        who = (await connection.execute(latest)).scalar_one_or_none()
        entries = await self._entries(connection, name if who is None else who)
        if not entries:
            msg = (
                f"there is no usage row of request {name!r}: it was never made, or it is still open"
            )
            raise ValueError(msg)
        more = cost - sum(entry.cost for entry in entries)
        if not more:
            return False
        words = {
            "outcome": CORRECTED,
            "estimated": False,
            "cost": more,
            "resolved_us": now,
        }
        await self._revise(connection, entries, words)
        return True

    async def _pending(self, connection: AsyncConnection, charge: Charge) -> Held | None:
        """What is pending for a charge of which nothing but the name is known: its own, or an asker's who has it."""
        pending = self._tables.pending
        query = select(pending).where(pending.c.request_id == charge.request_id)
        row = (await connection.execute(query)).one_or_none()
        if row is None or charge.reservation not in {row.reservation, *row.askers.split()}:
            return None
        return held_of(row)

    async def _entries(self, connection: AsyncConnection, who: str) -> Sequence[Any]:
        """What the log says of a reservation, in order; nobody else adds to it meanwhile."""
        usage = self._tables.usage
        of_it = usage.c.reservation == who
        # In a statement of its own: the next one then sees what others have added.
        first = select(usage.c.id).where(of_it, usage.c.revision == 0).with_for_update()
        await connection.execute(first)
        query = select(usage).where(of_it).order_by(usage.c.revision)
        found: Sequence[Any] = (await connection.execute(query)).all()
        return found

    async def _take(self, connection: AsyncConnection, held: Held) -> bool:
        """Give back what is pending; False: it is not."""
        count = Count(held.keys, held.currency, held.at, pending=-held.amount)
        name, who = held.request_id, held.reservation
        return await self._changes.take(connection, name, who, count) is not None

    async def _post(
        self, connection: AsyncConnection, held: Held, entry: dict[str, Any], *, capped: bool
    ) -> bool:
        """Turn what is pending into what it has cost; False: it is not pending."""
        if capped:
            await self._cap(connection, held, entry)
        count = Count(held.keys, held.currency, held.at, entry["cost"], -held.amount)
        name, who = held.request_id, held.reservation
        return await self._changes.post(connection, name, who, entry, count) is not None

    async def _post_unsaid(
        self, connection: AsyncConnection, told: Resolution, now: int, *, capped: bool
    ) -> bool:
        """Log a request that was admitted while nobody could be asked; its record came with its resolver.

        False: a first copy of this message was here, and nobody heard of it.
        """
        held = held_by(told.charge)
        entry = self._entry(held, told, now, OUTCOMES[told.verb])
        if capped:
            await self._cap(connection, held, entry)
        count = Count(held.keys, held.currency, held.at, entry["cost"])
        return await self._changes.log(connection, entry, count) is not None

    async def _cap(self, connection: AsyncConnection, held: Held, entry: dict[str, Any]) -> None:
        """Have an entry cost no more than the totals of its keys can count."""
        pending, totals = self._tables.pending, self._tables.totals
        # Locks in their order: the request's own row, and then its keys.
        mine = select(pending.c.request_id).where(pending.c.request_id == held.request_id)
        await connection.execute(mine.with_for_update())
        firsts = (
            select(totals.c.posted)
            .where(
                totals.c.key.in_(held.keys),
                totals.c.currency == held.currency,
                totals.c.ends_us == ALWAYS.ends,
                totals.c.starts_us == ALWAYS.starts,
            )
            .order_by(totals.c.id)
            .with_for_update()
        )
        most = MAX_NANO - max((await connection.execute(firsts)).scalars().all(), default=0)
        if entry["cost"] > most:
            entry |= {"cost": most, "estimated": True}

    def _entry(self, held: Held, told: Resolution, now: int, outcome: str) -> dict[str, Any]:
        """The first entry of a request in the log."""
        price = _usable(told.price, held.currency) or held.price
        cost = posted(told.verb, held.amount, told.bill, price, keeps=self._keeps)
        return {
            **entry_row(held, told, price, now),
            "revision": 0,
            "cost": cost.cost,
            "outcome": outcome,
            "estimated": cost.estimated,
        }

    async def _resolve_late(
        self, connection: AsyncConnection, told: Resolution, now: int, *, capped: bool = False
    ) -> bool:
        """Nothing is pending: somebody was first, or this is a second copy, or the amount had expired.

        What was posted because nobody could be asked stands until somebody says better.
        """
        charge = told.charge
        entries = await self._entries(connection, charge.reservation)
        if not entries or entries[-1].outcome != EXPIRED:
            return False
        first = entries[0]
        price = _usable(told.price, first.currency) or charge.price or read_price(first.price)
        cost = 0
        estimated = False
        if told.verb not in UNSENT:
            cost, estimated = posted(told.verb, first.cost, told.bill, price, keeps=self._keeps)
        words = {
            **token_columns(told),
            "model": (told.bill.model if told.bill else None) or first.model,
            "price_version": first.price_version if price is None else price.version,
            "outcome": OUTCOMES.get(told.verb, "cancelled"),
            "estimated": estimated,
            "cost": cost - first.cost,
            "resolved_us": now,
        }
        await self._revise(connection, entries, words, capped=capped)
        return True

    async def _revise(
        self,
        connection: AsyncConnection,
        entries: Sequence[Any],
        words: Mapping[str, Any],
        *,
        capped: bool = False,
    ) -> None:
        """Add an entry to what the log says of a request."""
        first = entries[0]
        lines = self._tables.lines
        query = select(lines.c.key).where(lines.c.usage_id == first.id).order_by(lines.c.key)
        keys = (await connection.execute(query)).scalars().all()
        held = held_of_entry(first, keys)
        entry = {
            **entry_row(held, None, None, words["resolved_us"]),
            "price_version": first.price_version,
            "revision": entries[-1].revision + 1,
            **words,
        }
        if capped:
            await self._cap(connection, held, entry)
        count = Count(held.keys, held.currency, held.at, entry["cost"])
        await self._changes.log(connection, entry, count)


def _usable(price: Price | None, currency: str) -> Price | None:
    """The served model's price, if it is in the currency that the request counts in: others are other money."""
    return price if price is not None and price.currency == currency else None
