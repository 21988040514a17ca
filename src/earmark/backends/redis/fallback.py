"""Deciding without the store: from memory, with a share of every amount.

What is taken here is resolved here (C58): the store never hears of it, so that nothing is given back to where it was
not taken from.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Literal

from earmark.backends.protocol import Desk
from earmark.backends.store import MemoryStore
from earmark.clock import Reading
from earmark.core.hold import Hold, Verb
from earmark.core.joint import Joint
from earmark.limits import Limit, Limits, Scope


class _Part(Hold):
    """A hold as it stands in the memory of this process: the same over shares of its limits."""

    __slots__ = ("whole",)

    whole: Hold


class LocalShare:
    """Limits of this process alone, each a share of the whole.

    Args:
        share: of every amount, above 0 and at most 1; `auto`: the whole, until it is divided.
        reading: how the clock is read.
        lease_us: microseconds for which a slot is held where a hold names no lease of its own.
        desk: that of the backend, where reservations that are given up are laid.
    """

    def __init__(
        self, share: float | Literal["auto"], reading: Reading, lease_us: int, desk: Desk
    ) -> None:
        # A quotient, since a third of 90 is 30, which it is not of the double that is nearest.
        self._share = (1, 1) if share == "auto" else share.as_integer_ratio()
        self._is_fixed = share != "auto"
        self._desk = desk
        self._own_desk = Desk()
        self._store = MemoryStore(reading, lease_us, self._own_desk)
        self._keeps = False  # whether there may be anything in it
        self._scaled = lru_cache(maxsize=1_024)(self._scale)

    def worst_case(self) -> str:
        """The most that all processes together admit."""
        numerator, processes = self._share
        if self._is_fixed:
            share = f"{numerator / processes:g}"
            return f"each process admits up to {share} of every amount by itself: replicas × {share} in all"
        each = (
            f"each of {processes} processes" if processes > 1 else "the one process that is known"
        )
        return f"{each} admits up to 1/{processes} of every amount by itself: the whole in all"

    def divide(self, processes: int) -> None:
        """Give out the part of one of so many. Amounts may change (R17): what was used stays used."""
        if self._share != (1, processes):
            self._share = (1, processes)
            self._scaled = lru_cache(maxsize=1_024)(self._scale)

    def reserve(self, hold: Hold) -> Hold | None:
        """Decide over the shares, and write into the hold that they decided."""
        part = (
            Joint(*map(self._share_of, hold.parts))
            if isinstance(hold, Joint)
            else self._share_of(hold)
        )
        self._keeps = True
        standing = self._store.reserve(part)
        self._lay_down()
        hold.place = "local"
        hold.shares, hold.seen, hold.at = part.scopes, part.seen, part.at
        if isinstance(standing, _Part):
            return standing.whole
        return hold if standing is part else None

    def _share_of(self, hold: Hold) -> _Part:
        part = _Part()
        part.whole = hold
        part.id, part.request_id = hold.id, hold.request_id
        part.asks, part.lease_us = hold.asks, hold.lease_us
        part.scopes = tuple(
            Scope(scope.key, self._scaled(scope.limits), scope.enforce) for scope in hold.scopes
        )
        return part

    def resolve(
        self, hold: Hold, verb: Verb, exact: Mapping[str, int], at_least: Mapping[str, int]
    ) -> bool:
        """True up what was taken here."""
        return self._store.resolve(hold, verb, exact, at_least)

    def renew(self, hold: Hold) -> bool:
        """Extend a lease that was given here."""
        (held,) = self._store.renew([hold])
        return held

    def attend(self, hold: Hold) -> None:
        """The holder lives in this process: it needs no lease."""
        self._store.attend(hold)

    def release(self, hold: Hold) -> None:
        """Its holder hands it over: the lease runs."""
        self._store.release(hold)

    def tidy(self) -> None:
        """Drop what is over: when there is no outage nobody else asks here. Costs nothing once all of it is."""
        if self._keeps:
            self._keeps = False  # before it looks: another thread may be about to add something
            if self._store.size():
                self._keeps = True
            self._lay_down()

    def _lay_down(self) -> None:
        """Hand on what was given up unresolved, as the reservation that its holder knows."""
        with suppress(IndexError):
            while True:
                given_up = self._own_desk.forgotten.popleft()
                if isinstance(given_up, _Part):
                    self._desk.forgotten.append(given_up.whole)

    def _scale(self, limits: Limits) -> Limits:
        return Limits(also=[self._part(limit) for limit in limits])

    def _part(self, limit: Limit) -> Limit:
        burst = None if limit.burst is None else self._scaled_amount(limit.burst)
        amount = self._scaled_amount(limit.amount)
        return Limit(limit.metric, amount, limit.window, limit.algorithm, burst)

    def _scaled_amount(self, amount: int) -> int:
        """A share of something is at least 1, so that no key is locked out."""
        numerator, denominator = self._share
        return max(amount * numerator // denominator, 1) if amount else 0
