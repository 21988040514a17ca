"""The messages of a backend, decided in memory at one instant each, as plain functions.

One lock guards everything, and nothing that runs under it can wait: finalisers, which may run anywhere, never
take it (R15); an injected clock is read under it, and must not call the limiter. Time never steps back (R11).
There is no background task: what can no longer matter is dropped when the clock passes the next moment at
which something ends (`_turn`), which costs one comparison per message in between (R14).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from earmark.amounts import MAX_AMOUNT
from earmark.backends.book import KEEP_US, Book, over
from earmark.backends.protocol import Desk, Seen
from earmark.backends.tables import (
    BucketTable,
    FixedTable,
    SlidingTable,
    SlotTable,
    Table,
    WindowTable,
    end_of_window,
)
from earmark.clock import Reading
from earmark.core.admission import States, algorithm_of
from earmark.core.hold import Hold, Verb
from earmark.core.joint import Joint
from earmark.core.settlement import UNSENT, used
from earmark.ids import Id
from earmark.limits import CONCURRENCY, Limit, Limits, Scope

# A bare key counts in these always, since it may not have been seen (R8). Amounts play no part in it.
_BARE_KEY: Final = Limits(tpm=0, tph=0, tpd=0).all

_TABLES: Final[Mapping[str, Callable[[Limit, int], WindowTable[Any]]]] = {
    "fixed_window": FixedTable,
    "sliding_window": SlidingTable,
    "token_bucket": BucketTable,
}

_Row = tuple[tuple[Limit, Table[Any], dict[str, int] | None, str, int | None, int], ...]
"""Of each limit: itself, its table, the table's counts, its metric, what is unasked of it, its capacity."""

_MAX_ROWS: Final = 1_024  # a caller may make limits anew for every request

_Pair = tuple[str, str]
"""A key and the id of a limit: what has a state of its own (R13)."""

_NO_PAIRS: Final[frozenset[_Pair]] = frozenset()


class MemoryStore:
    """Limits in memory.

    Args:
        reading: how the clock is read; it never steps back.
        lease_us: microseconds for which a slot is held where a hold names no lease of its own.
        desk: where reservations that are given up are laid.
    """

    def __init__(self, reading: Reading, lease_us: int, desk: Desk) -> None:
        self._nanoseconds, self._ahead = reading
        self._desk = desk
        self._lock = threading.Lock()
        self._turn = 0  # the next moment at which something ends
        self._slots = SlotTable()
        self._book = Book(self._slots, lease_us)
        self._tables: dict[str, WindowTable[Any]] = {}
        self._rows: dict[object, _Row] = {}  # by the token of the limits
        self._added: dict[_Pair, int] = {}  # (key, request id) -> end, in the order of the ends
        self._forgiven: dict[Id, frozenset[_Pair]] = {}  # what a reset took from open holds

    def reserve(self, hold: Hold) -> Hold | None:  # noqa: C901, PLR0912 - a call per limit costs as much again
        """Judge every limit of every scope at one instant, and debit all of them or none."""
        with self._lock:
            hold.at = now = self._nanoseconds() // 1000 + self._ahead
            if now >= self._turn:
                self._forget(now)
            if hold.request_id is not None:
                known = self._book.adopt(hold.request_id, hold)
                if known is not None:
                    return known
            asks = hold.asks
            seen: list[Any] = []
            hold.seen = seen
            totals: list[tuple[dict[str, int], str, int]] = []
            debits: list[tuple[Table[Any], str, Limit, int]] = []
            refused = False
            for scope in hold.scopes:
                key = scope.key
                limits = scope.limits
                row = self._rows.get(limits.token) or self._row(limits, now)
                for limit, table, counts, metric, unasked, capacity in row:
                    if counts is not None:
                        state = used = counts.get(key, 0)
                    else:
                        state = table.look(key, now)
                        used = table.rules.used(limit, state, now, now)
                    seen.append(state)
                    ask = asks.get(metric, unasked)
                    if ask is None:
                        continue
                    if used + (ask or 1) > capacity and scope.enforce:
                        refused = True  # the others are looked at all the same: a refusal names every limit
                    elif counts is not None:
                        totals.append((counts, key, used + ask))
                    else:
                        debits.append((table, key, limit, ask))
            if refused:
                return None
            for counts, key, total in totals:
                counts[key] = total if total <= MAX_AMOUNT else MAX_AMOUNT
            for table, key, limit, ask in debits:
                table.debit(key, hold.id, limit, ask, now)
                if table is self._slots:
                    self._turn = min(self._turn, self._book.lend(hold, key))
            self._book.open[hold.id] = hold
            if hold.request_id is not None:
                self._book.name(hold.request_id, hold)
            if now + KEEP_US < self._turn:
                self._turn = now + KEEP_US
            if isinstance(hold, Joint):
                self._book.divide(hold)
            return hold

    def resolve(
        self,
        hold: Hold,
        verb: Verb,
        exact: Mapping[str, int],
        at_least: Mapping[str, int],
    ) -> bool:
        """True up the holds of one reservation and free its slots; the first one wins (R5)."""
        with self._lock:
            now = self._nanoseconds() // 1000 + self._ahead
            if now >= self._turn:
                self._forget(now)
            book = self._book
            found = book.strike(hold, verb) if book.notes else book.open.pop(hold.id, None)
            if found is None:
                return False
            hold = found  # what stands in the book counts
            id_ = hold.id
            forgiven = self._forgiven.pop(id_, _NO_PAIRS) if self._forgiven else _NO_PAIRS
            amounts = exact
            if verb in UNSENT or (at_least and _counts_any(hold, at_least)):
                amounts = used(hold, verb, exact, at_least)
            for scope in hold.scopes:
                by_metric = scope.limits.by_metric
                for metric, amount in amounts.items():
                    for limit in by_metric.get(metric, ()):
                        held = hold.asks.get(metric, limit.unasked) or 0
                        if amount > held:
                            self._table(limit, now).debit(scope.key, id_, limit, amount - held, now)
                        elif amount < held and not (forgiven and (scope.key, limit.id) in forgiven):
                            table = self._tables.get(limit.id)
                            if table is not None:
                                table.give_back(scope.key, limit, held - amount, hold.at, now)
            return True

    def add(self, target: Scope | str, amounts: Mapping[str, int], request_id: str | None) -> bool:
        """Count what no hold covers (R8)."""
        with self._lock:
            now = self._now()
            if isinstance(target, str):
                key, limits = target, self._reach(target, now)
            else:
                key, limits = target.key, target.limits.all
            if request_id is not None and (key, request_id) in self._added:
                return False
            counted = False
            for limit in limits:
                amount = amounts.get(limit.metric)
                if amount:
                    self._table(limit, now).debit(key, 0, limit, amount, now)
                    counted = True
            if counted and request_id is not None:
                self._added[key, request_id] = now + KEEP_US
                self._turn = min(self._turn, now + KEEP_US)
            return counted

    def _reach(self, key: str, now: int) -> tuple[Limit, ...]:
        """The `tokens` limits that a bare key reaches: a minute, an hour, a day, and where it counts."""
        found = {limit.id: limit for limit in _BARE_KEY}
        for table in self._tables.values():
            limit = table.counted(key, now)
            if limit is not None and limit.metric == "tokens":
                found.setdefault(limit.id, limit)
        return tuple(found.values())

    def renew(self, holds: Sequence[Hold]) -> list[bool]:
        """Extend leases that have not lapsed."""
        with self._lock:
            now = self._now()
            return [self._book.renew(hold.id, now) for hold in holds]

    def peek(self, scopes: tuple[Scope, ...]) -> Seen:
        """Read the state of every limit at one instant."""
        with self._lock:
            now = self._now()
            states = [
                self._table(limit, now).look(scope.key, now)
                for scope in scopes
                for limit in scope.limits
            ]
            return Seen(tuple(states), now)

    def unheld(self, scopes: tuple[Scope, ...], seen: Seen) -> States:
        """What was seen, as it would be had every open reservation been cancelled at that instant (R6, R7)."""
        limits = {(scope.key, limit.id): limit for scope in scopes for limit in scope.limits}
        states: dict[_Pair, Any] = dict(zip(limits, seen.states, strict=True))
        with self._lock:
            for hold in self._book.open.values():
                if hold.at > seen.at:
                    continue  # it was made since
                forgiven = self._forgiven.get(hold.id, _NO_PAIRS)
                for pair, ask in _taken(hold):
                    if pair in states and pair not in forgiven:
                        limit = limits[pair]
                        rules: Any = algorithm_of(limit)
                        state = states[pair]
                        states[pair] = rules.give_back(limit, state, ask, hold.at, seen.at)
        return tuple(states.values())

    def reset(self, scopes: tuple[Scope, ...]) -> None:
        """Forget counts; open holds on them then have nothing to give back."""
        with self._lock:
            self._now()
            pairs = _pairs(scopes)
            keys = {scope.key for scope in scopes}
            for key, id_ in pairs:
                if id_ in self._tables:
                    self._tables[id_].forget(key)
            for hold in self._book.open.values():
                if not any(scope.key in keys for scope in hold.scopes):
                    continue
                taken = _pairs(hold.scopes) & pairs
                if taken:
                    self._forgiven[hold.id] = self._forgiven.get(hold.id, _NO_PAIRS) | taken

    def attend(self, hold: Hold) -> None:
        """The holder lives in this process: its reservation needs no lease from now on (R10)."""
        if self._book.is_attended(hold.id):
            return
        with self._lock:
            self._now()
            self._book.attend(hold.id)

    def release(self, hold: Hold) -> None:
        """The holder may live anywhere from now on: the lease runs again."""
        with self._lock:
            self._turn = min(self._turn, self._book.release(hold.id, self._now()))

    def size(self) -> int:
        """How many states, slots, reservations and ids are kept."""
        with self._lock:
            self._now()
            states = sum(map(len, self._tables.values())) + len(self._slots)
            return states + len(self._book.open) + len(self._added)

    def _now(self) -> int:
        """The instant of a message, with everything that is over by then dropped."""
        now = self._nanoseconds() // 1000 + self._ahead
        if now >= self._turn:
            self._forget(now)
        return now

    def _forget(self, now: int) -> None:
        """Drop windows, leases, reservations and ids that are over, and find the next end."""
        self._rows.clear()
        given_up, turn = self._book.turn(now)
        for hold in given_up:
            self._forgiven.pop(hold.id, None)
            self._desk.forgotten.append(hold)
        for name, table in list(self._tables.items()):
            end = table.turn(now)
            if not table.empty():
                turn = min(turn, end)
            else:
                del self._tables[name]
        over(self._added, now)
        for end in self._added.values():
            turn = min(turn, end)
            break
        self._turn = turn

    def _table(self, limit: Limit, now: int) -> Table[Any]:
        """The table of a limit, whose turn comes at the end of its window at the latest."""
        if limit.metric == CONCURRENCY:
            return self._slots
        table = self._tables.get(limit.id)
        if table is None:
            table = self._tables[limit.id] = _TABLES[limit.algorithm](limit, now)
            self._turn = min(self._turn, end_of_window(limit, now))
        return table

    def _row(self, limits: Limits, now: int) -> _Row:
        """Everything that judging these limits needs, found once for all requests until the next turn."""
        if len(self._rows) >= _MAX_ROWS:
            self._rows.clear()
        row = self._rows[limits.token] = tuple(
            (limit, table, table.counts, limit.metric, limit.unasked, limit.capacity)
            for limit in limits
            for table in (self._table(limit, now),)
        )
        return row


def _taken(hold: Hold) -> Iterator[tuple[_Pair, int]]:
    """What a hold has debited, by key and limit; slots are not given back by amount."""
    for scope in hold.scopes:
        for limit in scope.limits:
            ask = hold.asks.get(limit.metric, limit.unasked)
            if ask and limit.metric != CONCURRENCY:
                yield (scope.key, limit.id), ask


def _counts_any(hold: Hold, amounts: Mapping[str, int]) -> bool:
    """Whether any of these metrics is limited: mostly that is `tokens` alone, which is known exactly."""
    for scope in hold.scopes:  # noqa: SIM110 - a generator takes twice as long
        if not scope.limits.by_metric.keys().isdisjoint(amounts):
            return True
    return False


def _pairs(scopes: tuple[Scope, ...]) -> frozenset[_Pair]:
    return frozenset((scope.key, limit.id) for scope in scopes for limit in scope.limits)
