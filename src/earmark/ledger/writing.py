"""The transactions that write: hold, resolve, correct. Each is one function of a connection that has begun one.

The order of locks is the same everywhere, so that none waits for another in a circle: first the request's own rows (in
`pending`, then in `usage`), then the first rows of its keys in the order of their ids. Whoever has a key's first row
has every row of the key, so that a period's total can be made from the log while nobody posts to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Select, bindparam, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from earmark.core.settlement import UNSENT
from earmark.errors import RequestIdConflict
from earmark.ids import is_name
from earmark.ledger.charge import Charge, Resolution
from earmark.ledger.costing import posted
from earmark.ledger.counting import Counting
from earmark.ledger.judging import judge
from earmark.ledger.periods import interval_of
from earmark.ledger.rows import (
    Held,
    entry_row,
    held_by,
    held_of,
    held_of_entry,
    line_row,
    pending_row,
    token_columns,
)
from earmark.ledger.tables import Tables

OUTCOMES: Final = {
    "settle": "settled",
    "close": "closed",
    "abandon": "abandoned",
    "cancel": "cancelled",
}
EXPIRED: Final = "expired"
CORRECTED: Final = "corrected"


class Writing:
    """The transactions on one ledger's tables.

    Args:
        tables: the tables.
        dialect: `sqlite` or `postgresql`.
        expiry_us: microseconds for which an amount is pending.
        keeps: whether a request whose outcome is unknown costs what it held.
    """

    def __init__(self, tables: Tables, dialect: str, expiry_us: int, *, keeps: bool) -> None:
        self.counting = Counting(tables, dialect)
        self._tables = tables
        self._expiry_us = expiry_us
        self._keeps = keeps
        insert = sqlite.insert if dialect == "sqlite" else postgresql.insert
        pending, usage = tables.pending, tables.usage
        self._hold = insert(pending).on_conflict_do_nothing()
        self._take = (
            pending.delete()
            .where(
                pending.c.request_id == bindparam("name"),
                pending.c.reservation == bindparam("who"),
            )
            .returning(*pending.c)
        )
        self._log = usage.insert().returning(usage.c.id)
        self._log_first = insert(usage).on_conflict_do_nothing().returning(usage.c.id)
        self._lines = tables.lines.insert()

    async def hold(self, connection: AsyncConnection, charge: Charge) -> None:
        """Set a charge's amount aside, or take over what is pending under its request id.

        Raises:
            BudgetExceeded: a budget has no room.
            RequestIdConflict: the request id holds something else, or is in the log.
        """
        row = pending_row(charge, charge.at + self._expiry_us)
        done = await connection.execute(self._hold, row)
        if not done.rowcount:
            await self._adopt(connection, charge)
            return
        if charge.chosen and await self._was_used(connection, charge.request_id):
            raise RequestIdConflict(charge.request_id)
        sums = await self.counting.add(
            connection, charge.keys, charge.currency, charge.at, pending=charge.amount
        )
        for budget in charge.budgets:
            interval = interval_of(budget, charge.at)
            if (budget.key, interval) not in sums:
                sums[budget.key, interval] = await self.counting.begin(
                    connection, budget.key, charge.currency, interval
                )
        judge(charge, sums)

    async def _was_used(self, connection: AsyncConnection, name: str) -> bool:
        """Whether a name is in the log, or an id of the library's that its caller may have meant by it."""
        meant = name.removeprefix("=")
        entries = await self._entries(connection, name)
        return bool(entries or (is_name(meant) and await self._entries(connection, meant)))

    async def _adopt(self, connection: AsyncConnection, charge: Charge) -> None:
        """The request id is open: the same request has come before, through another process it may be."""
        pending = self._tables.pending
        mark = (
            pending.update()
            .where(pending.c.request_id == charge.request_id)
            .values(adopted=True)
            .returning(*pending.c)
        )
        row = (await connection.execute(mark)).one_or_none()
        if row is None:  # it was resolved a moment ago
            raise RequestIdConflict(charge.request_id)
        held = held_of(row)
        mine = (charge.keys, charge.model, charge.currency, charge.amount)
        if mine != (held.keys, held.model, held.currency, held.amount):
            raise RequestIdConflict(charge.request_id)
        charge.reservation, charge.at, charge.price = held.reservation, held.at, held.price
        charge.adopted = True

    async def resolve(self, connection: AsyncConnection, told: Resolution, now: int) -> bool:
        """Post what a charge has cost, or give it back; True iff it was open."""
        charge = told.charge
        if charge.unsaid:
            return told.verb in UNSENT or await self._post_unsaid(connection, told, now)
        if told.verb == "withdraw" and await self._is_adopted(connection, charge):
            return False  # somebody else has been given it (R9)
        row = await self._taken(connection, charge.request_id, charge.reservation)
        if row is None:
            return await self._resolve_late(connection, told, now)
        held = held_of(row)
        if told.verb in UNSENT:
            await self.counting.add(
                connection, held.keys, held.currency, held.at, pending=-held.amount
            )
            return True
        await self._post(connection, held, told, now, outcome=OUTCOMES[told.verb])
        return True

    async def expire(self, connection: AsyncConnection, name: str, who: str, now: int) -> bool:
        """Post what a holder that is gone has held, as it stands; False: somebody has resolved it by now."""
        row = await self._taken(connection, name, who)
        if row is None:
            return False
        told = Resolution(Charge(name, who), "abandon")
        await self._post(connection, held_of(row), told, now, outcome=EXPIRED)
        return True

    async def correct(self, connection: AsyncConnection, name: str, cost: int, now: int) -> bool:
        """Have a request cost what its bill says; False: it does already.

        Raises:
            ValueError: there is no row of it.
        """
        entries = await self._entries(connection, name)
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

    async def _taken(self, connection: AsyncConnection, name: str, who: str) -> Any | None:  # noqa: ANN401 - a row
        return (await connection.execute(self._take, {"name": name, "who": who})).one_or_none()

    async def _is_adopted(self, connection: AsyncConnection, charge: Charge) -> bool:
        pending = self._tables.pending
        query = select(pending.c.adopted).where(
            pending.c.request_id == charge.request_id,
            pending.c.reservation == charge.reservation,
        )
        return bool((await connection.execute(query.with_for_update())).scalar_one_or_none())

    async def _entries(self, connection: AsyncConnection, name: str) -> Sequence[Any]:
        """What the log says of a request, in order; nobody else adds to it meanwhile."""
        usage = self._tables.usage
        query: Select[Any] = (
            select(usage).where(usage.c.request_id == name).order_by(usage.c.revision)
        )
        found: Sequence[Any] = (await connection.execute(query.with_for_update())).all()
        return found

    async def _post(
        self, connection: AsyncConnection, held: Held, told: Resolution, now: int, *, outcome: str
    ) -> None:
        """Turn what is pending into what it has cost."""
        entry = self._entry(held, told, now, outcome)
        number = (await connection.execute(self._log_first, entry)).scalar_one_or_none()
        if number is None:
            # It was admitted a second time while the database could not be asked, and is in the log by that.
            await self.counting.add(
                connection, held.keys, held.currency, held.at, pending=-held.amount
            )
        else:
            await self._count_in(connection, number, held, entry["cost"], -held.amount)

    async def _post_unsaid(self, connection: AsyncConnection, told: Resolution, now: int) -> bool:
        """Log a request that was admitted while nobody could be asked; its record came with its resolver."""
        charge = told.charge
        held = held_by(charge)
        entry = self._entry(held, told, now, OUTCOMES[told.verb])
        number = (await connection.execute(self._log_first, entry)).scalar_one_or_none()
        if number is None:
            (first, *_) = await self._entries(connection, charge.request_id)
            if first.reservation == charge.reservation:
                return False  # a first copy of this message was here, and nobody heard of it
            # The id was used before, which nobody could say: it is logged under its own name, so that it counts.
            entry["request_id"] = charge.reservation
            number = (await connection.execute(self._log_first, entry)).scalar_one_or_none()
            if number is None:
                return False
        await self._count_in(connection, number, held, entry["cost"], 0)
        return True

    def _entry(self, held: Held, told: Resolution, now: int, outcome: str) -> dict[str, Any]:
        """The first entry of a request in the log."""
        price = told.price or held.price
        cost = posted(told.verb, held.amount, told.bill, price, keeps=self._keeps)
        return {
            **entry_row(held, told, price, now),
            "revision": 0,
            "cost": cost.cost,
            "outcome": outcome,
            "estimated": cost.estimated,
        }

    async def _count_in(
        self, connection: AsyncConnection, number: int, held: Held, cost: int, pending: int
    ) -> None:
        """Let an entry of the log count in every key that it names."""
        if not held.keys:
            return
        await connection.execute(
            self._lines, [line_row(number, key, held, cost) for key in held.keys]
        )
        await self.counting.add(
            connection, held.keys, held.currency, held.at, posted=cost, pending=pending
        )

    async def _resolve_late(self, connection: AsyncConnection, told: Resolution, now: int) -> bool:
        """Nothing is pending: somebody was first, or this is a second copy, or the amount had expired.

        What was posted because nobody could be asked stands until somebody says better.
        """
        charge = told.charge
        entries = [
            entry
            for entry in await self._entries(connection, charge.request_id)
            if entry.reservation == charge.reservation
        ]
        if not entries or entries[-1].outcome != EXPIRED:
            return False
        first = entries[0]
        price = told.price or charge.price
        cost = 0
        estimated = False
        if told.verb not in UNSENT:
            cost, estimated = posted(told.verb, first.cost, told.bill, price, keeps=self._keeps)
        words = {
            **token_columns(told),
            "outcome": OUTCOMES.get(told.verb, "cancelled"),
            "estimated": estimated,
            "cost": cost - first.cost,
            "resolved_us": now,
        }
        await self._revise(connection, entries, words)
        return True

    async def _revise(
        self, connection: AsyncConnection, entries: Sequence[Any], words: Mapping[str, Any]
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
        number = (await connection.execute(self._log, entry)).scalar_one()
        await self._count_in(connection, number, held, words["cost"], 0)
