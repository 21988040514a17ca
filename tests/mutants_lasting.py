"""Backends with which something lasts too long, or not long enough: each the plain one, spoilt in one message.

Each passes whoever sends a message once, and within the lease or the hour of what it is about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from earmark import Scope
from earmark.backends import Hold, Seen, Verb
from earmark.testing.plain import KEEP_US, PlainBackend, pairs


class AskedAgainRenewsTheLease(PlainBackend):
    """Who asks for an open id again has its slots renewed."""

    def find(self, hold: Hold) -> Hold | None:
        known = super().find(hold)
        if known is not None and not (one := self.open[known.id]).lapsed:
            one.lease_end = self.latest + one.lease_us
        return known


class AskedAgainKeepsTheReservation(PlainBackend):
    """Who asks for an open id again begins its hour anew."""

    def find(self, hold: Hold) -> Hold | None:
        known = super().find(hold)
        if known is not None:
            self.open[known.id].renewed = self.latest
        return known


class AddedAgainIsRememberedAnew(PlainBackend):
    """The TTL of an addition's id is written whenever it comes."""

    async def add(
        self, target: Scope | str, amounts: Mapping[str, int], request_id: str | None
    ) -> bool:
        counted = await super().add(target, amounts, request_id)
        pair = (target if isinstance(target, str) else target.key, request_id or "")
        if pair in self.added:
            self.added[pair] = self.latest + KEEP_US
        return counted


class ResetForgetsAdditions(PlainBackend):
    """A reset drops everything that is kept under its keys, ids of additions too."""

    async def reset(self, scopes: tuple[Scope, ...]) -> None:
        await super().reset(scopes)
        keys = {scope.key for scope in scopes}
        self.added = {pair: end for pair, end in self.added.items() if pair[0] not in keys}


class PeekProlongs(PlainBackend):
    """A state that is read is written back, with a TTL of its own."""

    async def peek(self, scopes: tuple[Scope, ...]) -> Seen:
        seen = await super().peek(scopes)
        self.touch(scopes, seen.at)
        return seen

    def touch(self, scopes: tuple[Scope, ...], now: int) -> None:
        """Write what is read."""
        for scope, limit in pairs(scopes):
            if (count := self.counts.get((scope.key, limit.id))) is not None:
                count.state, count.at = self.look(scope.key, limit, now), now
                count.debited = now


class RefusalProlongs(PeekProlongs):
    """So does a refusal."""

    peek = PlainBackend.peek

    async def reserve(self, hold: Hold) -> Hold | None:
        standing = await super().reserve(hold)
        if standing is None:
            self.touch(hold.scopes, hold.at)
        return standing


class AtWorkForAnHour(PlainBackend):
    """What is open is forgotten an hour after it was renewed, whether somebody is at work on it or not."""

    def now(self) -> int:
        now = super().now()
        self.open = {id_: one for id_, one in self.open.items() if one.renewed + KEEP_US > now}
        return now


class HandedOverWithoutALease(PlainBackend):
    """What is handed over has what is left of the lease that it began with: nothing, after a long call."""

    def release(self, hold: Hold) -> None:
        if (one := self.open.get(hold.id)) is not None:
            one.attended = False


class AddsWhereThereIsRoom(PlainBackend):
    """An addition to a limit that is used up is refused, as a request would be."""

    async def add(
        self, target: Scope | str, amounts: Mapping[str, int], request_id: str | None
    ) -> bool:
        if isinstance(target, Scope):
            states = (await self.peek((target,))).states
            if any(
                state >= limit.amount for limit, state in zip(target.limits, states, strict=True)
            ):
                return False
        return await super().add(target, amounts, request_id)


class BelievesTheCaller(PlainBackend):
    """What is given back is computed from the hold that comes with the message."""

    async def resolve(
        self, hold: Hold, verb: Verb, exact: Mapping[str, int], at_least: Mapping[str, int]
    ) -> bool:
        if (one := self.open.get(hold.id)) is not None:
            hold.at = one.hold.at
            one.hold = hold
        return await super().resolve(hold, verb, exact, at_least)


MUTANTS_LASTING: Final[Sequence[tuple[type[PlainBackend], str]]] = (
    (AskedAgainRenewsTheLease, "c02_asking_an_id_again_renews_no_lease"),
    (
        AskedAgainKeepsTheReservation,
        "r10_asking_an_id_again_keeps_the_reservation_no_longer",
    ),
    (
        AddedAgainIsRememberedAnew,
        "c02_an_addition_that_comes_again_is_remembered_no_longer",
    ),
    (ResetForgetsAdditions, "c56_a_reset_forgets_no_id_of_an_addition"),
    (PeekProlongs, "r14_what_counts_nothing_prolongs_nothing"),
    (RefusalProlongs, "r14_what_counts_nothing_prolongs_nothing"),
    (AtWorkForAnHour, "r10_a_holder_at_work_keeps_its_reservation"),
    (HandedOverWithoutALease, "r10_a_lease_begins_with_the_handing_over"),
    (AddsWhereThereIsRoom, "b29_an_addition_counts_above_the_limit"),
    (BelievesTheCaller, "r6_the_record_counts_and_not_what_the_caller_believes"),
)
"""Each, and the case that finds it."""
