"""Limits in the memory of one process: exact, thread-safe, and decided without ever suspending.

One lock guards everything, and nothing that runs under it can wait or call out: finalisers, which may run
anywhere, never take it (R15). Time is read under the lock and never steps back (R11). There is no
background task: what can no longer matter is dropped when the clock passes the next moment at which
something ends (`_turn`), which costs one comparison per message in between (R14).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from earmark.backends.protocol import Desk, Hold, Seen, Verb
from earmark.backends.tables import (
    BucketTable,
    FixedTable,
    SlidingTable,
    SlotTable,
    Table,
    WindowTable,
    end_of_window,
)
from earmark.clock import Clock, injected_microseconds, monotonic_microseconds
from earmark.core.settlement import raised
from earmark.errors import RequestIdConflict
from earmark.ids import id_of
from earmark.limits import CONCURRENCY, HOUR, MICROSECONDS, Limit, Limits, Scope, to_microseconds

KEEP_US: Final = HOUR * MICROSECONDS
"""How long an open reservation can be resolved after its last renewal (R10), and an id of an addition counts."""

# A bare key counts in these always, since it may not have been seen (R8). Amounts play no part in it.
_BARE_KEY: Final = Limits(tpm=0, tph=0, tpd=0).all

_TABLES: Final[Mapping[str, Callable[[Limit, int], WindowTable[Any]]]] = {
    "fixed_window": FixedTable,
    "sliding_window": SlidingTable,
    "token_bucket": BucketTable,
}


_Debit = tuple[Table[Any], str, Limit, int | None]
"""Where, of which key, under which limit and how much was taken; None: neither judged nor counted."""


class _Note:
    """What is remarkable about an open reservation; most have no note."""

    lapsed = False
    """Its lease is over: its slots are free and stay so."""
    adopted = False
    """It was handed to a second caller under its request id."""
    attended = False
    """Its holder lives in this process: no lease ends it."""
    renewed = 0
    """When it was last renewed, in microseconds."""
    lease_us = 0
    slots: tuple[str, ...] = ()
    """The keys of which it holds a slot."""
    forgiven: frozenset[tuple[str, str]] = frozenset()
    """The (key, limit id) that a reset has forgotten since."""


_UNREMARKABLE: Final = _Note()

_UNSENT: Final[frozenset[Verb]] = frozenset({"cancel", "withdraw"})


class MemoryBackend:
    """The backend of a single process, shared by its threads and event loops.

    Args:
        clock: a callable that returns seconds since the epoch; by default the wall clock as it stands
            now, running monotonically.
        lease: seconds for which a slot is held without a renewal, where a reservation names no lease of
            its own; at most an hour.
    """

    instant = True

    def __init__(self, *, clock: Clock | None = None, lease: float = 60.0) -> None:
        self._read = monotonic_microseconds() if clock is None else injected_microseconds(clock)
        self._lease_us = to_microseconds("lease", lease)
        self._lock = threading.Lock()
        self._turn = 0  # the next moment at which something ends
        self._slots = SlotTable()
        self._tables: dict[str, WindowTable[Any]] = {}
        self._rows: dict[str, tuple[Table[Any], ...]] = {}  # signature of limits -> their tables
        self._open: dict[int, tuple[Hold, list[_Debit]]] = {}  # in the order of their last renewal
        self._notes: dict[int, _Note] = {}
        self._request_ids: dict[str, int] = {}
        self._leases: dict[
            int, dict[int, int]
        ] = {}  # length -> id -> end, each in the order of the ends
        self._added: dict[
            tuple[str, str], int
        ] = {}  # (key, request_id) -> end, in the order of the ends
        self.desk = Desk()

    async def reserve(self, hold: Hold) -> Hold | None:
        """Decide over every limit of every scope at one instant, and debit all of them or none."""
        with self._lock:
            hold.at = now = self._read()
            if now >= self._turn:
                self._forget(now)
            if hold.request_id is not None:
                known = self._adopt(hold.request_id, hold)
                if known is not None:
                    return known
            debits = self._judge(hold, now)
            if debits is None:
                return None
            id_ = hold.id
            for table, key, limit, ask in debits:
                if ask is not None:
                    table.debit(key, id_, limit, ask, now)
                    if table is self._slots:
                        self._lend(hold, key)
            self._open[id_] = (hold, debits)
            self._turn = min(self._turn, now + KEEP_US)
            if hold.request_id is not None:
                self._request_ids[hold.request_id] = id_
            return hold

    def _judge(self, hold: Hold, now: int) -> list[_Debit] | None:
        """What is to be debited, or None: a limit refuses. The hold gets what was seen in either case."""
        asks = hold.asks
        hold.seen = seen = []
        debits: list[_Debit] | None = []
        for scope in hold.scopes:
            key = scope.key
            limits = scope.limits
            tables = self._rows.get(limits.signature) or self._row(limits, now)
            for limit, table in zip(limits.all, tables):  # noqa: B905 - a row is as long as its limits
                if isinstance(table, FixedTable):  # its count is its use: most limits need no call
                    state = used = table.counts.get(key, 0)
                else:
                    state = table.look(key, now)
                    used = table.rules.used(limit, state, now, now)
                seen.append(state)
                ask = asks.get(limit.metric, limit.unasked)
                if ask is not None and used + (ask or 1) > limit.capacity and scope.enforce:
                    debits = (
                        None  # the others are looked at all the same: a refusal names every limit
                    )
                elif debits is not None:
                    debits.append((table, key, limit, ask))
        return debits

    def _adopt(self, request_id: str, hold: Hold) -> Hold | None:
        """The reservation that is open under the request id, if there is one (R9)."""
        id_ = self._request_ids.get(request_id) or id_of(request_id)
        if id_ not in self._open:
            return None
        known, _ = self._open[id_]
        if known.name != request_id:
            return None  # it was given a name of its own, and answers to that alone
        if not hold.repeats(known):
            raise RequestIdConflict(request_id)
        self._note(id_).adopted = True
        return known

    async def resolve(
        self,
        id: int,  # noqa: A002 - the word of every message
        verb: Verb,
        exact: Mapping[str, int],
        at_least: Mapping[str, int],
    ) -> bool:
        """True up the holds of one reservation and free its slots; the first one wins (R5)."""
        with self._lock:
            now = self._read()
            if now >= self._turn:
                self._forget(now)
            record = self._open.get(id)
            if record is None:
                return False
            hold, debits = record
            note = self._notes.get(id, _UNREMARKABLE)
            if verb == "withdraw" and note.adopted:
                return False
            self._strike_out(hold)
            forgiven = note.forgiven
            unsent = verb in _UNSENT
            for table, key, limit, ask in debits:
                held = ask or 0
                used = 0 if unsent else exact.get(limit.metric)
                if used is None:
                    used = raised(held, at_least.get(limit.metric)) if at_least else held
                if used > held:
                    self._table(limit, now).debit(key, id, limit, used - held, now)
                elif used < held and not (forgiven and (key, limit.id) in forgiven):
                    # A table that is no longer kept has nothing to give back to: its windows are over.
                    table.give_back(key, limit, held - used, hold.at, now)
            return True

    async def add(
        self, target: Scope | str, amounts: Mapping[str, int], request_id: str | None
    ) -> bool:
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

    async def renew(self, ids: Sequence[int]) -> list[bool]:
        """Extend leases that have not lapsed; a lapsed one is never revived (C5)."""
        with self._lock:
            now = self._now()
            return [self._renew(id_, now) for id_ in ids]

    def _renew(self, id_: int, now: int) -> bool:
        record = self._open.pop(id_, None)
        if record is None:
            return False
        self._open[id_] = record
        note = self._note(id_)
        note.renewed = now
        if note.slots and not note.lapsed and not note.attended:
            self._begin_lease(id_, note, now)
        return not note.lapsed

    async def peek(self, scopes: tuple[Scope, ...]) -> Seen:
        """Read the state of every limit at one instant."""
        with self._lock:
            now = self._now()
            states = [
                self._table(limit, now).look(scope.key, now)
                for scope in scopes
                for limit in scope.limits
            ]
            return Seen(tuple(states), now)

    async def reset(self, scopes: tuple[Scope, ...]) -> None:
        """Forget counts; open holds on them then have nothing to give back."""
        with self._lock:
            self._now()
            pairs = {(scope.key, limit.id) for scope in scopes for limit in scope.limits}
            for key, id_ in pairs:
                if id_ in self._tables:
                    self._tables[id_].forget(key)
            for hold, _ in self._open.values():
                held = {(scope.key, limit.id) for scope in hold.scopes for limit in scope.limits}
                if held & pairs:
                    self._note(hold.id).forgiven |= held & pairs

    def attend(self, id: int) -> None:  # noqa: A002 - the word of every message
        """The holder lives in this process: its reservation needs no lease from now on (R10)."""
        with self._lock:
            self._now()
            if id in self._open:
                note = self._note(id)
                note.attended = True
                self._end_lease(id, note)

    async def aclose(self) -> None:
        """Nothing is held open."""

    def size(self) -> int:
        """How many states, slots, reservations and ids are kept."""
        with self._lock:
            self._now()
            tables = sum(map(len, self._tables.values()))
            return tables + len(self._slots) + len(self._open) + len(self._added)

    def _now(self) -> int:
        """The instant of a message, with everything that is over by then dropped."""
        now = self._read()
        if now >= self._turn:
            self._forget(now)
        return now

    def _forget(self, now: int) -> None:
        """Drop windows, leases, reservations and ids that are over, and find the next end."""
        ends = [now + KEEP_US]
        for name, table in list(self._tables.items()):
            end = table.turn(now)
            if len(table):
                ends.append(end)
            else:
                del self._tables[name]
                self._rows.clear()
        for length, lease in list(self._leases.items()):
            for id_ in _over(lease, now):
                note = self._notes[id_]
                note.lapsed = True
                self._free(id_, note)
            ends.extend(itertools.islice(lease.values(), 1))
            if not lease:
                del self._leases[length]
        while self._open:
            hold, _ = next(iter(self._open.values()))
            note = self._notes.get(hold.id, _UNREMARKABLE)
            end = max(note.renewed, hold.at) + KEEP_US
            if end > now:
                ends.append(end)
                break
            if note.attended:
                self._renew(hold.id, now)
            else:
                self._strike_out(hold)
                self.desk.forgotten.append(hold)
        for _ in _over(self._added, now):
            pass
        ends.extend(itertools.islice(self._added.values(), 1))
        self._turn = min(ends)

    def _table(self, limit: Limit, now: int) -> Table[Any]:
        """The table of a limit, whose turn comes at the end of its window at the latest."""
        if limit.metric == CONCURRENCY:
            return self._slots
        table = self._tables.get(limit.id)
        if table is None:
            table = self._tables[limit.id] = _TABLES[limit.algorithm](limit, now)
            self._turn = min(self._turn, end_of_window(limit, now))
        return table

    def _row(self, limits: Limits, now: int) -> tuple[Table[Any], ...]:
        """The tables of some limits, found once for all scopes that have the like."""
        row = tuple(self._table(limit, now) for limit in limits)
        self._rows[limits.signature] = row
        return row

    def _note(self, id_: int) -> _Note:
        return self._notes.setdefault(id_, _Note())

    def _lend(self, hold: Hold, key: str) -> None:
        """Note the slot that a hold was given, and begin its lease."""
        note = self._note(hold.id)
        note.slots += (key,)
        note.lease_us = hold.lease_us or self._lease_us
        self._begin_lease(hold.id, note, hold.at)

    def _begin_lease(self, id_: int, note: _Note, now: int) -> None:
        self._end_lease(id_, note)
        end = now + note.lease_us
        self._leases.setdefault(note.lease_us, {})[id_] = end
        self._turn = min(self._turn, end)

    def _end_lease(self, id_: int, note: _Note) -> None:
        lease = self._leases.get(note.lease_us)
        if lease is not None:
            lease.pop(id_, None)

    def _free(self, id_: int, note: _Note) -> None:
        for key in note.slots:
            self._slots.free(key, id_)

    def _strike_out(self, hold: Hold) -> None:
        """Take a reservation off the books; its slots are free."""
        del self._open[hold.id]
        if hold.request_id is not None:
            del self._request_ids[hold.request_id]
        if self._notes:
            note = self._notes.pop(hold.id, _UNREMARKABLE)
            if note.slots:
                self._end_lease(hold.id, note)
                self._free(hold.id, note)


def _over(ends: dict[Any, int], now: int) -> Iterator[Any]:
    """Take out, in order, what ends at `now` or before."""
    while ends:
        name, end = next(iter(ends.items()))
        if end > now:
            return
        del ends[name]
        yield name
