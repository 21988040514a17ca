"""A backend of one's own: limits in a file of SQLite's, which survive a restart of their process.

    python examples/sqlite_backend.py

runs it through the contract that every backend keeps. docs/backends.md explains it. One process at a time may use a
file; what another store does differently is said there.
"""

import asyncio
import pickle
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from earmark import Health, Limit, Limiter, Limits, RequestIdConflict, Scope
from earmark.backends import (
    CONCURRENCY,
    MICROSECONDS,
    Clock,
    Desk,
    Hold,
    Seen,
    Verb,
    lease_microseconds,
    name_of,
)
from earmark.core import algorithm_of, at_window, counts_until, denials, divided, parts_of, used
from earmark.testing import check_backend

KEEP = (
    3_600 * MICROSECONDS
)  # an open reservation can be resolved for so long after its last renewal
AT_WORK = 2**62  # the end of what is held by a holder at work in this process: it needs no lease
NEVER = 2**62  # a debt that drains slowly may end after the last moment that a column can hold
BARE_KEY = tuple(Limits(tpm=0, tph=0, tpd=0))  # what an addition under a bare key counts in, always

SCHEMA = """
CREATE TABLE IF NOT EXISTS counts (key, limit_id, value, ends, PRIMARY KEY (key, limit_id));
CREATE TABLE IF NOT EXISTS open (name PRIMARY KEY, called, record, ends);
CREATE TABLE IF NOT EXISTS slots (key, name, ends, PRIMARY KEY (key, name));
CREATE TABLE IF NOT EXISTS added (key, request_id, ends, PRIMARY KEY (key, request_id));
CREATE TABLE IF NOT EXISTS clock (one INTEGER PRIMARY KEY, latest);
INSERT OR IGNORE INTO clock VALUES (1, 0);
"""
TABLES = ("counts", "open", "slots", "added")


@dataclass
class Count:
    """What is used of one limit by one key: a state, when it was read, and when something was debited last."""

    limit: Limit
    state: Any
    at: int
    debited: int

    @property
    def ends(self) -> int:
        """From when on it does not matter."""
        window = self.limit.window_us
        if self.limit.algorithm == "token_bucket":
            return min(counts_until(self.state, window), NEVER)
        windows = 1 if self.limit.algorithm == "fixed_window" else 2
        return (self.debited // window + windows) * window


@dataclass
class Record:
    """What is kept of an open reservation: what was asked and seen, so that nothing is ever inferred."""

    request_id: str | None
    scopes: tuple[Scope, ...]
    asks: Mapping[str, int]
    lease_us: int
    seen: Sequence[Any]
    at: int
    adopted: bool = False  # a second caller was given it under its request id
    forgiven: frozenset[tuple[str, str]] = frozenset()  # of which a reset has forgotten the debit

    @property
    def slots(self) -> list[str]:
        """The keys of which it was given a slot."""
        return [scope.key for scope, limit in pairs(self.scopes) if limit.metric == CONCURRENCY]

    def hold(self, name: str) -> Hold:
        """The hold, as it was when it was admitted."""
        return Hold.restored(
            name,
            self.request_id,
            self.scopes,
            self.asks,
            lease_us=self.lease_us,
            seen=self.seen,
            at=self.at,
        )


class SQLiteBackend:
    """Limits in a file, for the event loop of one process. No message suspends, so that none can be cut in two.

    Args:
        path: the file, which nobody else may write: it has pickles in it.
        clock: a callable that returns seconds since the epoch.
        lease: seconds for which a slot is held without a renewal.
    """

    instant = (
        None  # it blocks for a moment, and that belongs into a message, not into a plain function
    )
    assured = True  # a resolve that has begun is done when it returns

    def __init__(
        self, path: str | Path = ":memory:", *, clock: Clock | None = None, lease: float = 60.0
    ) -> None:
        self.desk = Desk()
        self.clock = clock
        self.name = f"sqlite:{path}"
        self.lease_us = lease_microseconds(lease)
        self.db = sqlite3.connect(path, isolation_level=None)
        self.db.executescript(SCHEMA)
        with self.message() as now:  # whoever was at work when the process ended is gone
            leased = (now + self.lease_us, AT_WORK)
            self.db.execute("UPDATE slots SET ends = ? WHERE ends = ?", leased)
            self.db.execute("UPDATE open SET ends = ? WHERE ends = ?", (now + KEEP, AT_WORK))

    @contextmanager
    def message(self) -> Iterator[int]:
        """One transaction and one instant, which never steps back. What is over by then is forgotten."""
        self.db.execute("BEGIN IMMEDIATE")
        try:
            clock = self.clock or time.time
            self.db.execute(
                "UPDATE clock SET latest = max(latest, ?)", (round(clock() * MICROSECONDS),)
            )
            ((now,),) = self.db.execute("SELECT latest FROM clock")
            for name, record in self.records("ends <= ?", now):
                self.desk.forgotten.append(record.hold(name))
            for table in TABLES:
                self.db.execute(f"DELETE FROM {table} WHERE ends <= ?", (now,))  # noqa: S608
            yield now
        except BaseException:
            self.db.execute("ROLLBACK")
            raise
        self.db.execute("COMMIT")

    # The six messages.

    async def reserve(self, hold: Hold) -> Hold | None:
        """Judge every limit of every scope at one instant, and debit all of them or none."""
        with self.message() as now:
            if hold.request_id is not None and (known := self.adopted(hold)):
                return known
            hold.at = now
            hold.seen = [self.look(scope.key, limit, now) for scope, limit in pairs(hold.scopes)]
            if any(denials(hold.scopes, hold.asks, hold.seen, now)):
                return None
            for scope, limit in pairs(hold.scopes):
                ask = hold.asks.get(limit.metric, limit.unasked)
                if limit.metric != CONCURRENCY and ask is not None:
                    self.debit(scope.key, limit, ask, now)
            for part in parts_of(divided(hold)):
                self.open(part, hold.lease_us or self.lease_us, now)
            return hold

    async def resolve(
        self, hold: Hold, verb: Verb, exact: Mapping[str, int], at_least: Mapping[str, int]
    ) -> bool:
        """Turn what is held into what was used, and free the slots; the first one wins."""
        with self.message() as now:
            name = name_of(hold.id)
            found = self.records("name = ?", name)
            if not found or (verb == "withdraw" and found[0][1].adopted):
                return False
            ((_, record),) = found
            self.db.execute("DELETE FROM open WHERE name = ?", (name,))
            self.db.execute("DELETE FROM slots WHERE name = ?", (name,))
            amounts = used(record.hold(name), verb, exact, at_least)
            for scope, limit in pairs(record.scopes):
                if limit.metric == CONCURRENCY or limit.metric not in amounts:
                    continue
                held = record.asks.get(limit.metric, limit.unasked) or 0
                more = amounts[limit.metric] - held
                if more > 0:
                    self.debit(scope.key, limit, more, now)
                elif more < 0 and (scope.key, limit.id) not in record.forgiven:
                    self.give_back(scope.key, limit, -more, record.at, now)
            return True

    async def add(
        self, target: Scope | str, amounts: Mapping[str, int], request_id: str | None
    ) -> bool:
        """Count what no hold covers."""
        with self.message() as now:
            key = target if isinstance(target, str) else target.key
            before = "SELECT 1 FROM added WHERE key = ? AND request_id = ?"
            if request_id is not None and self.rows(before, key, request_id):
                return False
            limits = self.reach(key) if isinstance(target, str) else tuple(target.limits)
            counted = [limit for limit in limits if amounts.get(limit.metric)]
            for limit in counted:
                self.debit(key, limit, amounts[limit.metric], now)
            if counted and request_id is not None:
                self.db.execute("INSERT INTO added VALUES (?, ?, ?)", (key, request_id, now + KEEP))
            return bool(counted)

    async def renew(self, holds: Sequence[Hold]) -> Sequence[bool]:
        """Extend the leases that still run; revive nothing."""
        with self.message() as now:
            return [self.extend(name_of(hold.id), now) for hold in holds]

    async def peek(self, scopes: tuple[Scope, ...]) -> Seen:
        """Read, change nothing."""
        with self.message() as now:
            return Seen([self.look(scope.key, limit, now) for scope, limit in pairs(scopes)], now)

    async def reset(self, scopes: tuple[Scope, ...]) -> None:
        """Forget what was used; what is open then has nothing to give back for it."""
        with self.message() as now:
            forgotten = {(scope.key, limit.id) for scope, limit in pairs(scopes)}
            for pair in forgotten:
                self.db.execute("DELETE FROM counts WHERE key = ? AND limit_id = ?", pair)
            for name, record in self.records("ends > ?", now):
                mine = {(scope.key, limit.id) for scope, limit in pairs(record.scopes)}
                record.forgiven |= mine & forgotten
                self.keep(name, record)

    # What they are made of.

    def rows(self, query: str, *values: object) -> list[Any]:
        """What a query finds."""
        return self.db.execute(query, values).fetchall()

    def count(self, key: str, limit: Limit) -> Count | None:
        """What is kept of a limit."""
        found = self.rows("SELECT value FROM counts WHERE key = ? AND limit_id = ?", key, limit.id)
        return loaded(found[0][0]) if found else None

    def look(self, key: str, limit: Limit, now: int) -> Any:  # noqa: ANN401 - of each algorithm its own
        """The state of a limit as it reads now."""
        if limit.metric == CONCURRENCY:
            return self.rows("SELECT count(*) FROM slots WHERE key = ?", key)[0][0]
        count = self.count(key, limit)
        if count is None:
            return algorithm_of(limit).unused()
        passed = now // limit.window_us - count.at // limit.window_us
        if limit.algorithm == "sliding_window":
            return at_window(count.state, passed)
        return count.state

    def write(self, key: str, count: Count) -> None:
        """Keep what is used of a limit, until it no longer matters."""
        row = (key, count.limit.id, pickle.dumps(count), count.ends)
        self.db.execute("INSERT OR REPLACE INTO counts VALUES (?, ?, ?, ?)", row)

    def debit(self, key: str, limit: Limit, amount: int, now: int) -> None:
        """Use so much more, whatever the limit."""
        state = algorithm_of(limit).debit(limit, self.look(key, limit, now), amount, now)
        self.write(key, Count(limit, state, now, now))

    def give_back(self, key: str, limit: Limit, amount: int, taken: int, now: int) -> None:
        """Give so much back of what was taken then; where that is over there is nothing to give."""
        count = self.count(key, limit)
        if count is not None:
            rules: Any = algorithm_of(limit)
            state = rules.give_back(limit, self.look(key, limit, now), amount, taken, now)
            self.write(key, Count(limit, state, now, count.debited))

    def reach(self, key: str) -> tuple[Limit, ...]:
        """The limits on tokens that a bare key counts in."""
        rows = self.rows("SELECT value FROM counts WHERE key = ?", key)
        kept = [loaded(value).limit for (value,) in rows]
        found = {limit.id: limit for limit in kept if limit.metric == "tokens"}
        return tuple((found | {limit.id: limit for limit in BARE_KEY}).values())

    def records(self, where: str, value: object) -> list[tuple[str, Record]]:
        """Open reservations, by their names."""
        found = self.rows(f"SELECT name, record FROM open WHERE {where}", value)  # noqa: S608
        return [(name, loaded(record)) for name, record in found]

    def keep(self, name: str, record: Record) -> None:
        """Write a record that has changed."""
        self.db.execute("UPDATE open SET record = ? WHERE name = ?", (pickle.dumps(record), name))

    def open(self, hold: Hold, lease_us: int, now: int) -> None:
        """Write down what was admitted, and give it its slots."""
        name = name_of(hold.id)
        record = Record(hold.request_id, hold.scopes, dict(hold.asks), lease_us, hold.seen, hold.at)
        row = (name, hold.name, pickle.dumps(record), now + KEEP)
        self.db.execute("INSERT INTO open VALUES (?, ?, ?, ?)", row)
        for key in record.slots:
            self.db.execute("INSERT INTO slots VALUES (?, ?, ?)", (key, name, now + lease_us))

    def adopted(self, hold: Hold) -> Hold | None:
        """The reservation that is open under a name, its caller's or its own; from now on it is that of two callers."""
        for name, record in self.records("called = ?", hold.request_id):
            if not hold.repeats(record.hold(name)):
                raise RequestIdConflict(hold.name)
            record.adopted = True
            self.keep(name, record)
            return record.hold(name)
        return None

    def extend(self, name: str, now: int) -> bool:
        """Renew what is still held: the reservation, and its slots unless one has lapsed."""
        found = self.records("name = ?", name)
        if not found:
            return False
        ((_, record),) = found
        self.db.execute("UPDATE open SET ends = ? WHERE name = ?", (now + KEEP, name))
        ends = now + record.lease_us
        held = self.db.execute("UPDATE slots SET ends = ? WHERE name = ?", (ends, name)).rowcount
        return held == len(record.slots)

    # What is not about limits.

    def attend(self, hold: Hold) -> None:
        """The holder is at work in this process: no lease ends what it holds."""
        with self.message():
            of = (AT_WORK, name_of(hold.id))
            self.db.execute("UPDATE open SET ends = ? WHERE name = ?", of)
            self.db.execute("UPDATE slots SET ends = ? WHERE name = ?", of)

    def release(self, hold: Hold) -> None:
        """The holder may be anywhere: the lease runs again."""
        with self.message() as now:
            self.extend(name_of(hold.id), now)

    def health(self) -> Health:
        """There is nothing that could be out of reach."""
        return Health()

    async def aclose(self) -> None:
        """Close the file."""
        self.db.close()

    def size(self) -> int:
        """How many things are kept, by which the contract sees what is forgotten."""
        with self.message():
            return sum(self.rows(f"SELECT count(*) FROM {table}")[0][0] for table in TABLES)  # noqa: S608


def loaded(value: bytes) -> Any:  # noqa: ANN401 - a Count or a Record
    """What was kept."""
    return pickle.loads(value)  # noqa: S301 - nobody else may write the file


def pairs(scopes: tuple[Scope, ...]) -> Iterator[tuple[Scope, Limit]]:
    """Every limit of every scope, in the order of refusals."""
    for scope in scopes:
        for limit in scope.limits:
            yield scope, limit


async def main() -> None:
    """Hold it to the contract, and see it survive a restart."""
    await check_backend(SQLiteBackend)

    alice = Scope("api_key:alice", Limits(tpd=1_000))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "limits.db"
        async with Limiter(SQLiteBackend(file)) as limiter:
            token = (await limiter.pre_commit(alice, tokens=300)).token()
        async with Limiter(SQLiteBackend(file)) as limiter:  # the process starts again
            await limiter.settle_success(token, 120)
            (status,) = await limiter.peek(alice)
            print(f"{status['tokens'].used} tokens are used")


if __name__ == "__main__":
    asyncio.run(main())
