"""Backends that do a message in part, for too short a time, or under the name of another: each the plain one, spoilt.

Each passes whoever looks at one scope, one window and one minute, under keys of letters alone. Those that prolong what
they should not are in mutants_lasting.py.
"""

from __future__ import annotations

import fnmatch
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import anyio.lowlevel

from earmark import Limit, Scope
from earmark.backends import Hold, Verb
from earmark.testing.plain import KEEP_US, Open, PlainBackend, pairs


class AddedIdForgottenSoon(PlainBackend):
    """The id of an addition is remembered for a minute."""

    async def add(
        self, target: Scope | str, amounts: Mapping[str, int], request_id: str | None
    ) -> bool:
        counted = await super().add(target, amounts, request_id)
        self.added = {pair: min(end, self.latest + 60_000_000) for pair, end in self.added.items()}
        return counted


class AddOfNothingSpendsItsId(PlainBackend):
    """The id of an addition is kept, whether it counted anything or not."""

    async def add(
        self, target: Scope | str, amounts: Mapping[str, int], request_id: str | None
    ) -> bool:
        counted = await super().add(target, amounts, request_id)
        if request_id is not None:
            of = target if isinstance(target, str) else target.key
            self.added.setdefault((of, request_id), self.latest + KEEP_US)
        return counted


class RenewedByTheDefault(PlainBackend):
    """A renewal is for the lease of the backend, whatever the reservation's own is."""

    def extend(self, one: Open | None, now: int) -> bool:
        held = super().extend(one, now)
        if held and one is not None:
            one.lease_end = now + self.lease_us
        return held


class NobodyIsAtWork(PlainBackend):
    """A holder at work is not known to be: its lease lapses."""

    def attend(self, hold: Hold) -> None:
        """Nothing."""


class AtWorkForEver(PlainBackend):
    """A holder that was at work is for ever."""

    def release(self, hold: Hold) -> None:
        """Nothing."""


class ColumnOf255(PlainBackend):
    """Keys are in a column of 255 characters."""

    def look(self, key: str, limit: Limit, now: int) -> Any:
        return super().look(key[:255], limit, now)

    def debit(self, key: str, limit: Limit, amount: int, now: int) -> None:
        super().debit(key[:255], limit, amount, now)


def folded(fold: Callable[[str], str]) -> type[PlainBackend]:
    """Request ids are compared as some collation compares them."""

    class Folded(PlainBackend):
        def find(self, hold: Hold) -> Hold | None:
            for one in self.open.values():
                if hold.request_id and fold(one.hold.request_id or "") == fold(hold.request_id):
                    one.adopted = True
                    return one.hold
            return None

        async def add(
            self, target: Scope | str, amounts: Mapping[str, int], request_id: str | None
        ) -> bool:
            return await super().add(target, amounts, request_id and fold(request_id))

    return Folded


def normal(text: str) -> str:
    """The composed form of a text."""
    return unicodedata.normalize("NFC", text)


class ReachesByPrefix(PlainBackend):
    """A bare key finds the rows whose key begins with it."""

    def reach(self, key: str) -> tuple[Limit, ...]:
        return tuple(
            {
                limit.id: limit
                for of in [key, *(of for of, _ in self.counts if of.startswith(key))]
                for limit in super(ReachesByPrefix, self).reach(of)
            }.values()
        )


class ReachesByPattern(PlainBackend):
    """A bare key is a pattern for KEYS or LIKE."""

    def reach(self, key: str) -> tuple[Limit, ...]:
        found = super().reach("")  # what is counted in always
        known = {limit.id for limit in found}
        return found + tuple(
            count.limit
            for (of, id_), count in self.counts.items()
            if fnmatch.fnmatchcase(of, key) and id_ not in known and count.limit.metric == "tokens"
        )


class ReachesWithoutDelimiter(PlainBackend):
    """A row's key is what stands before the first colon."""

    def reach(self, key: str) -> tuple[Limit, ...]:
        return super().reach(key.partition(":")[0])


class StopsAtTheFirstWindowThatIsOver(PlainBackend):
    """A settlement that finds a window over is done."""

    over = False

    async def resolve(
        self, hold: Hold, verb: Verb, exact: Mapping[str, int], at_least: Mapping[str, int]
    ) -> bool:
        self.over = False
        return await super().resolve(hold, verb, exact, at_least)

    def give_back(self, key: str, limit: Limit, amount: int, taken: int, now: int) -> None:
        self.over = self.over or (key, limit.id) not in self.counts
        if not self.over:
            super().give_back(key, limit, amount, taken, now)


class FreesTheFirstSlot(PlainBackend):
    """A reservation over two scopes frees the slot of the first."""

    def strike(self, one: Open, verb: Verb) -> None:
        super().strike(one, verb)
        (_, *others) = (scope.key for scope, _ in pairs(one.hold.scopes))
        if one.slots & {*others}:
            unknown = Hold()
            unknown.id, unknown.request_id = f"{one.hold.id}!", None
            unknown.scopes, unknown.asks = (), {}
            self.open[unknown.id] = replace(one, hold=unknown, slots=one.slots & {*others})


class ResetsTheFirstScope(PlainBackend):
    """A reset of two scopes forgets the first."""

    async def reset(self, scopes: tuple[Scope, ...]) -> None:
        await super().reset(scopes[:1])


class ForgivesByLimit(PlainBackend):
    """What a reset has forgotten is noted by the limit, without the key."""

    async def reset(self, scopes: tuple[Scope, ...]) -> None:
        await super().reset(scopes)
        for one in self.open.values():
            ids = {id_ for _, id_ in one.forgiven}
            every = {(scope.key, limit.id) for scope, limit in pairs(one.hold.scopes)}
            one.forgiven = frozenset(pair for pair in every if pair[1] in ids)


class SlotsComeLater(PlainBackend):
    """The counts are debited at once, and the slots written down in a second message."""

    async def reserve(self, hold: Hold) -> Hold | None:
        standing = await super().reserve(hold)
        one = self.open.get(hold.id)
        if one is not None and one.slots:
            slots, one.slots = one.slots, frozenset()
            await anyio.lowlevel.checkpoint()
            one.slots = slots
        return standing


class IdsAreNotRenewed(PlainBackend):
    """A request id names its reservation for an hour, whatever became of that meanwhile."""

    def find(self, hold: Hold) -> Hold | None:
        found = super().find(hold)
        return None if found is None or found.at + KEEP_US <= self.latest else found


class IdsStay(PlainBackend):
    """A request id that is over is left where it was written down, for its hour."""

    def strike(self, one: Open, verb: Verb) -> None:
        super().strike(one, verb)
        if one.hold.request_id is not None:
            self.added["called", one.hold.request_id] = self.latest + KEEP_US


class GivesUpTwice(PlainBackend):
    """What nobody resolved is given up once more, as another reservation."""

    def now(self) -> int:
        now = super().now()
        self.desk.forgotten.extend(map(Hold.once_more, tuple(self.desk.forgotten)))
        return now


MUTANTS_KEPT: Final[Sequence[tuple[type[PlainBackend], str]]] = (
    (AddedIdForgottenSoon, "r8_an_addition_is_remembered_for_an_hour"),
    (AddOfNothingSpendsItsId, "r8_an_addition_that_counts_nothing_spends_no_id"),
    (RenewedByTheDefault, "r10_a_renewal_is_for_the_lease_of_its_reservation"),
    (NobodyIsAtWork, "r10_a_holder_at_work_keeps_its_slot"),
    (AtWorkForEver, "r10_what_was_handed_over_is_held_for_one_lease"),
    (ColumnOf255, "r13_a_key_is_known_by_all_of_its_bytes"),
    *(
        (folded(fold), case)
        for fold in (str.casefold, str.rstrip, normal)
        for case in ("r9_no_two_request_ids_share", "r8_no_two_ids_of_additions_share")
    ),
    (ReachesByPrefix, "r8_a_bare_key_reaches_no_key_that_it_resembles"),
    (ReachesByPattern, "r8_a_bare_key_reaches_no_key_that_it_resembles"),
    (ReachesByPattern, "r8_a_bare_key_is_found_whatever_is_in_it"),
    (ReachesWithoutDelimiter, "r8_a_bare_key_is_found_whatever_is_in_it"),
    (StopsAtTheFirstWindowThatIsOver, "r6_each_window_is_over_by_itself"),
    (FreesTheFirstSlot, "r7_every_scope_gets_its_slot_back"),
    (ResetsTheFirstScope, "reset_forgets_every_scope_that_it_names"),
    (ForgivesByLimit, "reset_of_one_scope_costs_another_nothing"),
    (SlotsComeLater, "r1_ten_tasks_at_once_and_one_slot"),
    (IdsAreNotRenewed, "r9_a_renewal_keeps_the_id_as_well"),
    (IdsStay, "r14_what_is_resolved_leaves_no_id"),
    (GivesUpTwice, "r10_observers_hear_of_what_a_backend_gives_up"),
)
"""Each, and the case that finds it."""
