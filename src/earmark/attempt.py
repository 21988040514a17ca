"""One attempt of a request that may take several, and what all of its attempts share.

An attempt is a reservation over the scopes of its target. What it shares with the others, the holds over the scopes
of the request itself, is a reservation too, which no caller ever sees: the first attempt that is settled settles it, a
later one adds its usage, and it is closed when nobody is left who might settle it. Those are the `once` that made it,
until it is left, and every attempt that was handed over to a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from earmark.amounts import MAX_AMOUNT
from earmark.answers import LimitStatus, ScopeStatus
from earmark.core.admission import keep_tightest
from earmark.core.bill import Bill
from earmark.core.hold import Hold, Verb
from earmark.core.settlement import NOTHING
from earmark.events import Event, tell
from earmark.ids import name_of, next_id
from earmark.limits import Scope
from earmark.moves import MOVES
from earmark.office import Office, log_unresolved
from earmark.reservation import Reservation
from earmark.shielding import finish, together


class Shared(Reservation):
    """The holds over the scopes that all attempts of one request share."""

    __slots__ = ("_at_least", "_parties")
    _tidies = False  # whoever resolves it does, once all is resolved

    def __init__(self, office: Office, hold: Hold) -> None:
        super().__init__(office, hold)
        self._parties = 1
        self._at_least: Mapping[str, int] = NOTHING  # what unsettled attempts have used

    @property
    def never_suspends(self) -> bool:
        """Whether nothing that is asked of it can be interrupted."""
        return self._office.instant

    def join(self) -> None:
        """One more may settle it: an attempt was handed over, and outlives the `once`."""
        self._parties += 1

    def leave(self) -> None:
        """One fewer may settle it: the `once` is gone."""
        self._parties -= 1

    async def conclude(
        self, verb: Verb, exact: Mapping[str, int], at_least: Mapping[str, int], *, leaves: bool
    ) -> bool:
        """Charge what came of an attempt, or of them all; the last one who leaves closes what is open.

        Returns whether this has resolved it, or charged it once more.
        """
        self._parties -= leaves
        if verb == "settle":
            if await self._resolve("settle", *self._with_unsettled(exact, at_least)):
                return True
            return await self._charge({**at_least, **exact})
        if self._state == "settled":
            if at_least:
                await self._charge(at_least)
            return False
        if at_least:
            self._at_least = _sum(self._at_least, at_least)
        if self._parties:
            return False
        return await self._resolve(_unsettled(verb), NOTHING, self._at_least)

    def note(
        self, verb: Verb, exact: Mapping[str, int], at_least: Mapping[str, int], *, leaves: bool
    ) -> None:
        """The same, where nothing can be awaited any more (R15)."""
        self._parties -= leaves
        used = {**at_least, **exact}
        if self._state == "settled":
            if scopes := self._counting(used):
                self._office.desk.note(_Addition(self, self._hold, scopes, used))
        elif verb == "settle":
            self._drop("settle", *self._with_unsettled(exact, at_least))
        else:
            self._at_least = _sum(self._at_least, at_least)
            if not self._parties:
                self._drop(_unsettled(verb), NOTHING, self._at_least)

    def note_again(self, addition: _Addition) -> None:
        """It has failed: the next message tries again."""
        self._office.desk.dropped.append(addition)

    def give_up(self, verb: Verb) -> Coroutine[Any, Any, bool]:
        """The `once` is over. True iff this was resolved by that."""
        if verb == "cancel" and self._parties == 1:
            return self.cancel()
        return self.conclude(verb, NOTHING, NOTHING, leaves=True)

    def _with_unsettled(
        self, exact: Mapping[str, int], at_least: Mapping[str, int]
    ) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """What an attempt has used, together with what is known of those that were over before, and not settled."""
        if not self._at_least:
            return exact, at_least
        whole = _sum(exact, self._at_least)
        least = _sum(at_least, self._at_least)
        return {metric: whole[metric] for metric in exact}, least

    async def _charge(self, used: Mapping[str, int]) -> bool:
        """Count what an attempt has used beside the one that was settled."""
        if self._state != "settled":
            return False
        await self.add(self._counting(used), used)
        return True

    def _counting(self, used: Mapping[str, int]) -> list[Scope]:
        """Those of its scopes that count any of this."""
        return [
            scope
            for scope in self._hold.scopes
            if any(used.get(limit.metric) for limit in scope.limits)
        ]

    async def add(
        self, scopes: list[Scope], used: Mapping[str, int], request_id: str | None = None
    ) -> None:
        """Count usage under some of its scopes; once where it has an id, however often it is tried."""
        office = self._office
        if not office.participants:
            return
        if office.instant or len(scopes) == 1:
            for scope in scopes:
                await self._add(scope, used, request_id)
        else:
            await together(*(partial(self._add, scope, used, request_id) for scope in scopes))

    async def _add(self, scope: Scope, used: Mapping[str, int], request_id: str | None) -> None:
        office = self._office
        counted = await office.backend.add(scope, used, request_id)
        if counted and office.observers:
            event = Event("post_stream", self._hold.name, (scope.key,), used=used)
            tell(office.observers, event)


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> Mapping[str, int]:
    return {
        metric: min(one.get(metric, 0) + other.get(metric, 0), MAX_AMOUNT)
        for metric in {**one, **other}
    }


def _unsettled(verb: Verb) -> Verb:
    """What becomes of what nobody has settled: an attempt that was never sent says nothing of the others."""
    return "abandon" if verb == "abandon" else "close"


class _Addition(NamedTuple):
    """Usage that a finaliser could only note, under some scopes."""

    shared: Shared
    hold: Hold
    scopes: Sequence[Scope]
    used: Mapping[str, int]
    name: str | None = None  # what it was called when it failed

    async def do(self) -> bool:
        """Count it. What fails is logged the first time, and tried again with the next message: then True."""
        left = list(self.scopes)
        name = self.name or name_of(next_id())
        try:
            while left:
                await self.shared.add(left[:1], self.used, name)
                del left[0]
        except BaseException as error:
            self.shared.note_again(self._replace(scopes=left, name=name))
            if not isinstance(error, Exception):
                raise
            if self.name is None:
                log_unresolved(self.hold, error)
        return bool(left)


class Attempt(Reservation):
    """One attempt: a reservation over its target's scopes, settled together with what all attempts share.

    `settle_success` charges the target, and the scopes of the request once; the other verbs are about the target
    alone. Leaving its block open closes it, or abandons it where the block was cancelled.
    """

    __slots__ = ("_busy", "_shared", "_told_shared")
    _tidies = False  # not between its own part and what is shared

    def __init__(self, office: Office, hold: Hold, shared: Shared) -> None:
        super().__init__(office, hold)
        self._shared = shared
        self._busy = False  # somebody resolves it at this moment
        self._told_shared = False  # what is shared knows what came of this

    @property
    def request_id(self) -> str:
        """What messages call this attempt."""
        return self._hold.name

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """The scopes of the request, then those of the target."""
        return (*self._shared.scopes, *self._hold.scopes)

    @property
    def held(self) -> Mapping[str, int]:
        """Units by metric that are debited for this attempt and not yet resolved."""
        return {**self._shared.held, **super().held}

    @property
    def statuses(self) -> tuple[ScopeStatus, ...]:
        """Every limit as it was left when it was reserved: the request's, then the target's."""
        return (*self._shared.statuses, *super().statuses)

    @property
    def binding(self) -> Mapping[str, LimitStatus]:
        """By metric, the limit that has the least left, of the request's and the target's."""
        found = {**self._shared.binding}
        for one in super().binding.values():
            keep_tightest(found, one)
        return found

    @property
    def degraded(self) -> bool:
        """Whether any of it was admitted without the store."""
        return self._shared.degraded or self._hold.degraded

    @property
    def is_left_to_once(self) -> bool:
        """Whether the `once` that made it has to resolve it: it is open, and nobody has taken it over."""
        return self._state == "open" and not self._handed_over

    async def renew(self) -> bool:
        """Extend the leases of all slots; True iff every one is still held."""
        held = await super().renew()
        return (await self._shared.renew() or self._shared.state != "open") and held

    def step_aside(self) -> None:
        """A stream has it now, and may settle what is shared when the `once` is over."""
        super().step_aside()
        self._shared.join()

    def token(self) -> str:
        """Raise: an attempt is settled where its `once` was made.

        Raises:
            RuntimeError: always.
        """
        msg = "an attempt has no token, since it is settled with what others share: use pre_commit for one that travels"
        raise RuntimeError(msg)

    @property
    def _is_instant(self) -> bool:
        return super()._is_instant and self._shared.never_suspends

    async def _resolve(
        self,
        verb: Verb,
        exact: Mapping[str, int] = NOTHING,
        at_least: Mapping[str, int] = NOTHING,
        bill: Bill | None = None,  # an attempt spends nothing
    ) -> bool:
        if self._busy or verb not in MOVES[self._state]:
            return False
        if verb != "settle" and not self._handed_over:
            won = await super()._resolve(verb, exact, at_least)
        else:
            self._busy = True
            try:
                if self._office.instant and self._shared.never_suspends:
                    # Nothing suspends here, and no message gets lost.
                    won = await super()._resolve(verb, exact, at_least)
                    if not self._told_shared:
                        self._told_shared = True
                        leaves = self._handed_over
                        tells = self._shared.conclude(verb, exact, at_least, leaves=leaves)
                        won = await tells or won
                else:
                    won = await finish(self._resolve_all, verb, exact, at_least)
            finally:
                self._busy = False
        desk = self._office.desk
        if desk.dropped or desk.forgotten:
            await self._office.tidy()  # it may suspend: not before both parts are done (R16)
        return won

    async def _resolve_all(
        self, verb: Verb, exact: Mapping[str, int], at_least: Mapping[str, int]
    ) -> bool:
        """Resolve the target's part, and tell what is shared; what fails is left to be tried again (C24)."""
        won: list[bool] = []
        works: list[Callable[[], Coroutine[Any, Any, object]]] = []
        if not hasattr(self, "_resolved"):
            works.append(partial(self._resolve_own, won, verb, exact, at_least))
        if not self._told_shared:
            works.append(partial(self._tell_shared, won, verb, exact, at_least))
        try:
            if self._office.instant or self._shared.never_suspends:
                for work in works:
                    await work()
            else:
                await together(*works)
        except BaseException:
            self._state = "open"
            raise
        self._state = self.state
        return any(won)

    async def _resolve_own(
        self, won: list[bool], verb: Verb, exact: Mapping[str, int], at_least: Mapping[str, int]
    ) -> None:
        won.append(await super()._resolve(verb, exact, at_least))

    async def _tell_shared(
        self, won: list[bool], verb: Verb, exact: Mapping[str, int], at_least: Mapping[str, int]
    ) -> None:
        leaves = self._handed_over
        won.append(await self._shared.conclude(verb, exact, at_least, leaves=leaves))
        self._told_shared = True

    async def give_up(self, verb: Verb) -> bool:
        """The `once` is over, and this is open."""
        return not self._busy and await super()._resolve(verb)

    def let_go(self) -> None:
        """The same, where nothing can be awaited any more (R15)."""
        self._drop()

    def _drop(
        self,
        verb: Verb = "abandon",
        exact: Mapping[str, int] = NOTHING,
        at_least: Mapping[str, int] = NOTHING,
        bill: Bill | None = None,
    ) -> None:
        if self._busy:
            return
        tells = verb in MOVES[self._state] and self._handed_over and not self._told_shared
        super()._drop(verb, exact, at_least)
        if tells:
            self._told_shared = True
            self._shared.note(verb, exact, at_least, leaves=True)
