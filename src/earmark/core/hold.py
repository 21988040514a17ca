"""What a reservation is in a store: a record of what was asked and what was seen, and how it may be resolved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from earmark.core.admission import States
from earmark.ids import Id, id_of, name_of, next_id
from earmark.limits import CONCURRENCY, REQUESTS, Scope
from earmark.usage import TOKEN_METRICS

Verb = Literal["settle", "close", "abandon", "cancel", "withdraw"]
"""How a reservation is resolved. `withdraw` is the cancel of a reserve whose reply nobody received: it spares
a reservation that somebody else has been given since (R9)."""


Place = Literal["local", "open"]


class Hold:
    """The record of one reservation: what was asked, and what the store saw when it decided.

    What is given back later comes from here, never from an inference (C13).

    Attributes:
        id: names the reservation in every message of this process; chosen before the first one is sent. That of
            a reservation that another process made is its name in the world.
        request_id: the caller's own name for the request, or None.
        scopes: in the order of refusals.
        asks: units by metric; a metric that is not named asks `Limit.unasked`.
        lease_us: microseconds that slots are held without a renewal; None: the backend's own default.
        seen: the state of every limit before the debit, written by the store.
        at: the instant of the decision in microseconds, written by the store.
        told: who told the observers of this process of its admission; unset until somebody did.
        place: where it was taken, if not in the store: `local` in the memory of this process, `open` nowhere; else
            None, or unset.
        shares: the scopes by which it was judged, if those were others: shares of its own, or some that refused.
        charge: what a ledger holds for it; unset where nothing is spent.
        travels: whether its name or a token of it was given out, so that another process may resolve it; unset: it was
            not. What is unset takes longer to find than what is set: a store may set this and `place`.
        dropped: set once its handle was collected while open.
        tried: how this process has tried to resolve it, where the store may have heard of that or not: a verb and what
            goes with it, or nothing where it has tried in several ways; unset until a try has failed.
        settles_alone: whether no other is settled together with it.
    """

    __slots__ = (
        "asks",
        "at",
        "charge",
        "dropped",
        "id",
        "lease_us",
        "place",
        "request_id",
        "scopes",
        "seen",
        "shares",
        "told",
        "travels",
        "tried",
    )

    # Filled where it is made, by `restored` or, on the way of every request, by hand: a call of `__init__`
    # costs more than all of its assignments.
    id: Id
    request_id: str | None
    scopes: tuple[Scope, ...]
    asks: Mapping[str, int]
    lease_us: int | None
    seen: States
    at: int
    told: object
    place: Place | None
    shares: tuple[Scope, ...]
    travels: bool
    charge: object
    dropped: bool
    tried: tuple[Any, ...]
    settles_alone: ClassVar[bool] = True

    @classmethod
    def restored(
        cls,
        name: str,
        request_id: str | None,
        scopes: tuple[Scope, ...],
        asks: Mapping[str, int],
        *,
        lease_us: int | None,
        seen: States,
        at: int,
    ) -> Self:
        """Return the hold of a record that a store has kept, as it was when it was admitted.

        Args:
            name: its name in the world, `name_of(hold.id)`: in the process that made it the id is the same again.
            request_id: of the hold, like all that follows.
            scopes: in their order.
            asks: units by metric.
            lease_us: microseconds; None: the backend's own default.
            seen: the states that were seen.
            at: the instant of the decision in microseconds.
        """
        hold = cls()
        own = id_of(name)
        hold.id = name if own is None else own
        hold.request_id, hold.scopes, hold.asks = request_id, scopes, asks
        hold.lease_us, hold.seen, hold.at = lease_us, seen, at
        return hold

    @property
    def is_private(self) -> bool:
        """Whether nobody but this process can know of it."""
        return self.request_id is None and not getattr(self, "travels", False)

    @property
    def degraded(self) -> bool:
        """Whether it was taken without the store."""
        return getattr(self, "place", None) is not None

    @property
    def unsure(self) -> bool:
        """Whether the store, or the ledger where it spends, was not asked."""
        return self.degraded or getattr(getattr(self, "charge", None), "unsaid", False)

    @property
    def debits(self) -> Mapping[str, int]:
        """Units by metric that were debited; slots are not among them."""
        return {
            limit.metric: ask
            for scope in self.scopes
            for limit in scope.limits
            if limit.metric != CONCURRENCY
            and (ask := self.asks.get(limit.metric, limit.unasked)) is not None
        }

    @property
    def judged(self) -> tuple[Scope, ...]:
        """The scopes by which it was judged."""
        return getattr(self, "shares", self.scopes)

    @property
    def name(self) -> str:
        """What the request is called in the world: the caller's name for it, or one of the library's own."""
        return self.request_id or name_of(self.id)

    @property
    def alias(self) -> object:
        """What this process knows it by: the name that its caller chose, or its id, which is like no name."""
        return self.request_id or (self.id,)

    def has_tried(self, *tried: object) -> None:
        """A try to resolve it has failed, and the store may have heard of it."""
        self.tried = tried if getattr(self, "tried", tried) == tried else ()

    def once_more(self) -> Hold:
        """The same ask under another id: what is left of the first must not stand in its way."""
        again = Hold()
        again.id = next_id()
        again.request_id, again.scopes = self.request_id, self.scopes
        again.asks, again.lease_us = self.asks, self.lease_us
        if hasattr(self, "charge"):
            again.charge = self.charge
        return again

    def repeats(self, other: Hold) -> bool:
        """Whether this asks the same of the same keys, in whatever order (R9).

        Another that was made of a store's record has no charge: what that spends the ledger knows.
        """
        mine, theirs = self.scopes, other.scopes
        same_keys = {scope.key for scope in mine} == {scope.key for scope in theirs}
        charge = getattr(self, "charge", None)
        same_charge = charge == getattr(other, "charge", charge)
        same_asks = _beyond_unasked(self.asks) == _beyond_unasked(other.asks)
        return same_keys and same_asks and same_charge


def _beyond_unasked(asks: Mapping[str, int]) -> Mapping[str, int]:
    """The asks that differ from those of a request that names nothing."""
    return {
        metric: ask
        for metric, ask in asks.items()
        if not (ask == 0 and metric in TOKEN_METRICS) and not (ask == 1 and metric == REQUESTS)
    }
