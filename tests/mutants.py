"""Backends that each do one thing wrong, as such systems did: the plain backend with one part out of order.

Each is a backend that somebody might write, and a suite that passes it proves nothing. sixteen.py says which faults
they are, and what finds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from earmark import Limit, Scope
from earmark.core.admission import denials
from earmark.core.hold import Hold, Verb
from earmark.testing.plain import Count, Open, PlainBackend, pairs


class RefusalCharges(PlainBackend):
    """A request that is refused by concurrency still counts as a request."""

    async def reserve(self, hold: Hold) -> Hold | None:
        standing = await super().reserve(hold)
        if standing is None:
            for scope, limit in pairs(hold.scopes):
                if limit.metric == "requests":
                    self.debit(scope.key, limit, 1, hold.at)
        return standing


class PartialCommit(PlainBackend):
    """Scopes are committed one after the other, and a later one's refusal leaves the earlier ones as they are."""

    async def reserve(self, hold: Hold) -> Hold | None:
        standing = await super().reserve(hold)
        refusing = {one.key for one in denials(hold.scopes, hold.asks, hold.seen, hold.at)}
        if standing is None:
            for scope in hold.scopes:
                if scope.key in refusing:
                    break
                for limit in scope.limits:
                    ask = hold.asks.get(limit.metric, limit.unasked)
                    if limit.metric != "concurrency" and ask is not None:
                        self.debit(scope.key, limit, ask, hold.at)
        return standing


class RefundIntoNewWindow(PlainBackend):
    """What is given back goes to the current window, whenever it was taken."""

    def give_back(self, key: str, limit: Limit, amount: int, taken: int, now: int) -> None:
        super().give_back(key, limit, amount, now, now)


class SharedWindowMarker(PlainBackend):
    """The limits of one key share the marker of their window: who comes first in a new one renews it for all."""

    def matters(self, count: Count, now: int) -> bool:
        return True

    def debit(self, key: str, limit: Limit, amount: int, now: int) -> None:
        super().debit(key, limit, amount, now)
        for (of, _), count in self.counts.items():
            if of == key and count.limit.window_us == limit.window_us:
                count.at = now


class ExpiryRenewed(PlainBackend):
    """A counter expires one window after its last update, so that under steady traffic it never does."""

    def matters(self, count: Count, now: int) -> bool:
        return now - count.at < count.limit.window_us

    def look(self, key: str, limit: Limit, now: int) -> Any:
        count = self.counts.get((key, limit.id))
        if count is not None and limit.algorithm == "fixed_window":
            return count.state
        return super().look(key, limit, now)


class LeaseRenewedByOthers(PlainBackend):
    """The lease is of the whole counter: each acquire renews it for every slot."""

    async def reserve(self, hold: Hold) -> Hold | None:
        standing = await super().reserve(hold)
        for one in self.open.values():
            if standing is not None and not one.lapsed and one.slots & self.open[hold.id].slots:
                one.lease_end = hold.at + one.lease_us
        return standing


class FreesAnothersSlot(PlainBackend):
    """A release takes one off the count, whoever's slot that is."""

    def strike(self, one: Open, verb: Verb) -> None:
        super().strike(one, verb)
        others = [other for other in self.open.values() if other.slots & one.slots]
        if one.lapsed and others:
            self.lapse(others[0])


class LateRenewalRevives(PlainBackend):
    """A renewal writes the lease anew, whether the slot is still held or not."""

    def extend(self, one: Open | None, now: int) -> bool:
        if one is not None:
            one.lease_end = now
        return super().extend(one, now)


class ReplayDebitsTwice(PlainBackend):
    """A reserve that comes again under its id is another request."""

    def find(self, hold: Hold) -> Hold | None:
        return None


class ReplayedAddCountsTwice(PlainBackend):
    """An addition that comes again under its id counts again."""

    async def add(
        self, target: Scope | str, amounts: Mapping[str, int], request_id: str | None
    ) -> bool:
        return await super().add(target, amounts, None)


class LastResolverWins(PlainBackend):
    """A reservation that is resolved is kept, and can be resolved again."""

    def strike(self, one: Open, verb: Verb) -> None:
        self.open[one.hold.id] = replace(one, slots=frozenset())


class RefundAboveCapacity(PlainBackend):
    """A rollback gives back what was asked, not what was taken."""

    async def reserve(self, hold: Hold) -> Hold | None:
        standing = await super().reserve(hold)
        for scope, limit in pairs(hold.scopes) if standing is None else ():
            if limit.metric in hold.asks and limit.algorithm == "fixed_window":
                state = self.look(scope.key, limit, hold.at) - hold.asks[limit.metric]
                self.counts[scope.key, limit.id] = Count(limit, state, hold.at, hold.at)
        return standing


class OneWindowShort(PlainBackend):
    """A refusal's wait forgets that a full window weighs on the next one."""

    async def reserve(self, hold: Hold) -> Hold | None:
        standing = await super().reserve(hold)
        if standing is None:
            limits = [limit for _, limit in pairs(hold.scopes)]
            hold.seen = [
                (0, state[0]) if limit.algorithm == "sliding_window" else state
                for limit, state in zip(limits, hold.seen, strict=True)
            ]
        return standing


class AdmitsAtTheLimit(PlainBackend):
    """An exhausted limit admits whoever asks for nothing: `<=` where `<` belongs."""

    def refuses(self, hold: Hold) -> bool:
        found = denials(hold.scopes, hold.asks, hold.seen, hold.at)
        return any(one.used + one.asked > one.limit.capacity for one in found)


class HeldAtItsEnd(PlainBackend):
    """A lease still counts at the very moment at which it ends: `<=` where `<` belongs."""

    def lapse(self, one: Open) -> None:
        if one.lease_end < self.latest:
            super().lapse(one)


class KeysCutShort(PlainBackend):
    """Keys are kept by their first ten characters."""

    def look(self, key: str, limit: Limit, now: int) -> Any:
        return super().look(key[:10], limit, now)

    def debit(self, key: str, limit: Limit, amount: int, now: int) -> None:
        super().debit(key[:10], limit, amount, now)


class KeepsWhatRemains(PlainBackend):
    """What is kept is what remained, so that another amount forgives or charges what was used."""

    def look(self, key: str, limit: Limit, now: int) -> Any:
        state = super().look(key, limit, now)
        count = self.counts.get((key, limit.id))
        if count is None or limit.algorithm != "fixed_window":
            return state
        return state + limit.amount - count.limit.amount


class CutsOffAtTheAmount(PlainBackend):
    """What was used is never more than the amount, so that a lower one forgives what is above it."""

    def look(self, key: str, limit: Limit, now: int) -> Any:
        state = super().look(key, limit, now)
        return min(state, limit.amount) if limit.algorithm == "fixed_window" else state


class CancelKeepsTheSlot(PlainBackend):
    """A cancel gives the counts back and forgets the slot."""

    def strike(self, one: Open, verb: Verb) -> None:
        super().strike(one, verb)
        if verb == "cancel" and one.slots:
            unknown = Hold()
            unknown.id, unknown.request_id = f"{one.hold.id}!", None
            unknown.scopes, unknown.asks = (), {}  # a reset looks at whatever is open
            self.open[unknown.id] = replace(one, hold=unknown, attended=True)
