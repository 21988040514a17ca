"""The simplest backend that does what every backend does: limits in dicts. Read it to write your own.

A store judges, changes, and returns the states that it saw. The arithmetic is that of `earmark.core`, pure functions of
(state, limit, amount, now), and whatever an answer says is computed from the states by the limiter. What is left to a
store is to keep them: whole or not at all, at its own clock, by the reservation's own id.

Another store puts the same into its own transactions, and forgets by TTLs where this one looks at everything.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from earmark import Health, Limit, Limits, RequestIdConflict, Scope
from earmark.backends import (
    CONCURRENCY,
    MICROSECONDS,
    Clock,
    Desk,
    Hold,
    Seen,
    Verb,
    lease_microseconds,
)
from earmark.core import algorithm_of, at_window, counts_until, denials, divided, parts_of, used

__all__ = ["PlainBackend"]

KEEP_US: Final = 3_600 * MICROSECONDS
"""For how long an open reservation can be resolved after its last renewal (R10)."""

BARE_KEY: Final = Limits(tpm=0, tph=0, tpd=0).all
"""What a bare key counts in always (R8)."""


@dataclass
class Count:
    """What is used of one limit by one key: a state, when it was read, and when something was debited."""

    limit: Limit
    state: Any
    at: int
    debited: int


@dataclass
class Open:
    """An open reservation. What it holds of slots ends with its lease, and it itself much later.

    Attributes:
        hold: what was asked, what was seen, and when.
        slots: the keys of which it was given a slot.
        lease_us: how long a slot is held without a renewal.
        lease_end: when that is over; 0: it is over.
        renewed: when it was last renewed.
        attended: its holder is at work in this process, and needs no lease.
        adopted: a second caller was given it under its request id.
        forgiven: keys and limits of which a reset has forgotten what it took.
    """

    hold: Hold
    slots: frozenset[str]
    lease_us: int
    lease_end: int
    renewed: int
    attended: bool = False
    adopted: bool = False
    forgiven: frozenset[tuple[str, str]] = frozenset()

    @property
    def lapsed(self) -> bool:
        """Whether slots of it were freed by the clock."""
        return bool(self.slots) and not self.lease_end


class PlainBackend:
    """Limits in dicts, for one event loop. No message suspends, so that each is a transaction by itself.

    Args:
        clock: a callable that returns seconds since the epoch.
        lease: seconds for which a slot is held without a renewal.
    """

    instant = None
    assured = True

    def __init__(self, *, clock: Clock | None = None, lease: float = 60.0) -> None:
        self.desk = Desk()
        self.clock = clock
        self.name = f"plain:{secrets.token_hex(8)}"
        self.lease_us = lease_microseconds(lease)
        self.latest = 0
        self.counts: dict[tuple[str, str], Count] = {}
        self.open: dict[int | str, Open] = {}
        self.added: dict[tuple[str, str], int] = {}

    # The six messages.

    async def reserve(self, hold: Hold) -> Hold | None:
        """Judge every limit of every scope at one instant, and debit all of them or none (R1, R2)."""
        hold.at = now = self.now()
        if hold.request_id is not None and (known := self.find(hold)):
            return known
        hold.seen = [self.look(scope.key, limit, now) for scope, limit in pairs(hold.scopes)]
        if self.refuses(hold):
            return None
        for scope, limit in pairs(hold.scopes):
            ask = hold.asks.get(limit.metric, limit.unasked)
            if limit.metric != CONCURRENCY and ask is not None:
                self.debit(scope.key, limit, ask, now)
        divided(hold)
        for part in parts_of(hold):
            slots = {s.key for s, limit in pairs(part.scopes) if limit.metric == CONCURRENCY}
            lease_us = hold.lease_us or self.lease_us
            end = now + lease_us
            self.open[part.id] = Open(part, frozenset(slots), lease_us, end, now)
        return hold

    async def resolve(
        self, hold: Hold, verb: Verb, exact: Mapping[str, int], at_least: Mapping[str, int]
    ) -> bool:
        """True up and free the slots; the first one wins (R5–R7)."""
        now = self.now()
        found = self.open.get(hold.id)
        if found is None or (verb == "withdraw" and found.adopted):
            return False
        self.strike(found, verb)
        hold = found.hold  # what was written down counts, not what the caller believes
        amounts = used(hold, verb, exact, at_least)
        for scope, limit in pairs(hold.scopes):
            if limit.metric == CONCURRENCY or limit.metric not in amounts:
                continue
            held = hold.asks.get(limit.metric, limit.unasked) or 0
            delta = amounts[limit.metric] - held
            if delta > 0:
                self.debit(scope.key, limit, delta, now)
            elif delta < 0 and (scope.key, limit.id) not in found.forgiven:
                self.give_back(scope.key, limit, -delta, hold.at, now)
        return True

    async def add(
        self, target: Scope | str, amounts: Mapping[str, int], request_id: str | None
    ) -> bool:
        """Count what no hold covers (R8)."""
        now = self.now()
        key = target if isinstance(target, str) else target.key
        if request_id is not None and (key, request_id) in self.added:
            return False
        limits = self.reach(key) if isinstance(target, str) else tuple(target.limits)
        counted = [limit for limit in limits if amounts.get(limit.metric)]
        for limit in counted:
            self.debit(key, limit, amounts[limit.metric], now)
        if counted and request_id is not None:
            self.added[key, request_id] = now + KEEP_US
        return bool(counted)

    async def renew(self, holds: Sequence[Hold]) -> Sequence[bool]:
        """Extend the leases that still run (R10)."""
        now = self.now()
        return [self.extend(self.open.get(hold.id), now) for hold in holds]

    async def peek(self, scopes: tuple[Scope, ...]) -> Seen:
        """Read, change nothing."""
        now = self.now()
        return Seen([self.look(scope.key, limit, now) for scope, limit in pairs(scopes)], now)

    async def reset(self, scopes: tuple[Scope, ...]) -> None:
        """Forget what was used; what is open then has nothing to give back for it."""
        self.now()
        forgotten = {(scope.key, limit.id) for scope, limit in pairs(scopes)}
        for pair in forgotten:
            self.counts.pop(pair, None)
        for one in self.open.values():
            mine = {(scope.key, limit.id) for scope, limit in pairs(one.hold.scopes)}
            one.forgiven |= mine & forgotten

    # What they are made of.

    def now(self) -> int:
        """The instant of a message. It never steps back, and what is over by then is forgotten."""
        clock = time.time if self.clock is None else self.clock
        self.latest = now = max(self.latest, round(clock() * MICROSECONDS))
        for one in list(self.open.values()):
            if one.lease_end <= now and not one.attended:
                self.lapse(one)
            if one.renewed + KEEP_US <= now and not one.attended:
                del self.open[one.hold.id]
                self.desk.forgotten.append(one.hold)
        self.counts = {pair: one for pair, one in self.counts.items() if self.matters(one, now)}
        self.added = {pair: end for pair, end in self.added.items() if end > now}
        return now

    def matters(self, count: Count, now: int) -> bool:
        """Whether a state still counts."""
        window = count.limit.window_us
        if count.limit.algorithm == "token_bucket":
            return now < counts_until(count.state, window)
        windows = 1 if count.limit.algorithm == "fixed_window" else 2
        return now // window - count.debited // window < windows

    def look(self, key: str, limit: Limit, now: int) -> Any:
        """The state of a limit as it reads now."""
        if limit.metric == CONCURRENCY:
            return sum(key in one.slots and not one.lapsed for one in self.open.values())
        count = self.counts.get((key, limit.id))
        if count is None:
            return algorithm_of(limit).unused()
        passed = now // limit.window_us - count.at // limit.window_us
        if limit.algorithm == "sliding_window":
            return at_window(count.state, passed)
        return 0 if limit.algorithm == "fixed_window" and passed else count.state

    def refuses(self, hold: Hold) -> bool:
        """Whether a limit refuses, judged by what was seen."""
        return next(denials(hold.scopes, hold.asks, hold.seen, hold.at), None) is not None

    def debit(self, key: str, limit: Limit, amount: int, now: int) -> None:
        """Use so much more, whatever the limit."""
        state = algorithm_of(limit).debit(limit, self.look(key, limit, now), amount, now)
        self.counts[key, limit.id] = Count(limit, state, now, now)

    def give_back(self, key: str, limit: Limit, amount: int, taken: int, now: int) -> None:
        """Give so much back of what was taken then; where that is over there is nothing to give."""
        count = self.counts.get((key, limit.id))
        if count is not None:
            rules: Any = algorithm_of(limit)
            count.state = rules.give_back(limit, self.look(key, limit, now), amount, taken, now)
            count.at = now

    def find(self, hold: Hold) -> Hold | None:
        """The reservation that is open under a request id."""
        # An id of the library's is meant before a name that reads the same.
        for one in sorted(self.open.values(), key=lambda one: one.hold.request_id is not None):
            if one.hold.name == hold.request_id:
                if not hold.repeats(one.hold):
                    raise RequestIdConflict(one.hold.name)
                one.adopted = True
                return one.hold
        return None

    def strike(self, one: Open, verb: Verb) -> None:
        """Take a reservation, and with it its slots, off the book."""
        del self.open[one.hold.id]

    def lapse(self, one: Open) -> None:
        """The lease of its slots is over."""
        one.lease_end = 0

    def extend(self, one: Open | None, now: int) -> bool:
        """Renew what is still held; revive nothing."""
        if one is None:
            return False
        one.renewed = now
        if not one.lapsed:
            one.lease_end = now + one.lease_us
        return not one.lapsed

    def reach(self, key: str) -> tuple[Limit, ...]:
        """The limits on tokens that a bare key counts in."""
        found = {limit.id: limit for limit in BARE_KEY}
        for (of, id_), count in self.counts.items():
            if of == key and count.limit.metric == "tokens":
                found.setdefault(id_, count.limit)
        return tuple(found.values())

    # What is not about limits.

    def attend(self, hold: Hold) -> None:
        """The holder is at work in this process: no lease ends what it holds (R10)."""
        if hold.id in self.open:
            self.open[hold.id].attended = True

    def release(self, hold: Hold) -> None:
        """The holder may be anywhere: the lease runs again."""
        one = self.open.get(hold.id)
        if one is not None and one.attended:
            now = self.now()  # at which its slots are still held
            one.attended = False
            self.extend(one, now)

    def health(self) -> Health:
        """There is nothing that could be out of reach."""
        return Health()

    async def aclose(self) -> None:
        """Nothing is held open."""

    def size(self) -> int:
        """How many things are kept, for tests."""
        self.now()
        return len(self.counts) + len(self.open) + len(self.added)


def pairs(scopes: tuple[Scope, ...]) -> Iterator[tuple[Scope, Limit]]:
    """Every limit of every scope, in the order of refusals."""
    for scope in scopes:
        for limit in scope.limits:
            yield scope, limit
