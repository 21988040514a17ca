"""What a backend is: six messages, each decided at one instant of the store's own clock.

A backend judges, changes and returns the states that it saw; it computes no answer. Messages name the
reservation by its own id, never by the request id of a caller. Whoever writes a backend owes three things
beyond the arithmetic of `earmark.core`:

* a refusal changes nothing (R2), and the first `resolve` of an id wins (R5);
* `reserve` with a `request_id` that is open answers with the reservation that is open, marked as adopted;
* a message that was interrupted left either no trace or its whole effect.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from earmark.core.admission import States
from earmark.ids import name_of
from earmark.limits import REQUESTS, Scope
from earmark.usage import TOKEN_METRICS

Verb = Literal["settle", "close", "abandon", "cancel", "withdraw"]
"""How a reservation is resolved. `withdraw` is the cancel of a reserve whose reply nobody received: it spares
a reservation that somebody else has been given since (R9)."""


class Hold:
    """The record of one reservation: what was asked, and what the store saw when it decided.

    What is given back later comes from here, never from an inference (C13).

    Attributes:
        id: names the reservation in every message of this process; chosen before the first one is sent.
        request_id: the caller's own name for the request, or None.
        scopes: in the order of refusals.
        asks: units by metric; a metric that is not named asks `Limit.unasked`.
        lease_us: microseconds that slots are held without a renewal; None: the backend's own default.
        seen: the state of every limit before the debit, written by the store.
        at: the instant of the decision in microseconds, written by the store.
    """

    __slots__ = ("asks", "at", "id", "lease_us", "request_id", "scopes", "seen")

    seen: States
    at: int

    def __init__(
        self,
        id: int,  # noqa: A002 - the word of every message
        request_id: str | None,
        scopes: tuple[Scope, ...],
        asks: Mapping[str, int],
        lease_us: int | None = None,
    ) -> None:
        self.id = id
        self.request_id = request_id
        self.scopes = scopes
        self.asks = asks
        self.lease_us = lease_us

    @property
    def name(self) -> str:
        """What the request is called in the world: the caller's name for it, or one of the library's own."""
        return self.request_id or name_of(self.id)

    def repeats(self, other: Hold) -> bool:
        """Whether this asks the same of the same keys, in whatever order (R9)."""
        mine, theirs = self.scopes, other.scopes
        same_keys = {scope.key for scope in mine} == {scope.key for scope in theirs}
        return same_keys and _beyond_unasked(self.asks) == _beyond_unasked(other.asks)


def _beyond_unasked(asks: Mapping[str, int]) -> Mapping[str, int]:
    """The asks that differ from those of a request that names nothing."""
    return {
        metric: ask
        for metric, ask in asks.items()
        if not (ask == 0 and metric in TOKEN_METRICS) and not (ask == 1 and metric == REQUESTS)
    }


class Seen(NamedTuple):
    """The state of every limit of some scopes, and the instant at which it was read."""

    states: States
    at: int


class Noted(Protocol):
    """Work that a finaliser could only note (R15)."""

    async def do(self) -> None:
        """Do it."""
        ...


class Desk:
    """What the limiters of this process share about one backend; every backend has one of its own.

    Attributes:
        handles: the open handles by request id, so that an id asked twice is one object (R9).
        dropped: what finalisers noted. Appending needs no lock, so that they may run inside one (R15); the
            next message does the work.
        forgotten: holds that the store gave up unresolved; the next message reports them.
    """

    __slots__ = ("dropped", "forgotten", "handles")

    def __init__(self) -> None:
        self.handles: dict[str, weakref.ref[Any]] = {}
        self.dropped: deque[Noted] = deque()
        self.forgotten: deque[Hold] = deque()


class Backend(Protocol):
    """A store of limits.

    Attributes:
        instant: True if no message ever suspends, so that none can be cancelled half-way.
        desk: a `Desk()` of its own.
    """

    instant: bool
    desk: Desk

    async def reserve(self, hold: Hold) -> Hold | None:
        """Decide and debit; write `seen` and `at` into the hold.

        Returns the hold, or the one that is open already under its request id, or None: a limit refused.

        Raises:
            RequestIdConflict: the request id is open with other scopes or asks.
            BackendUnavailable: no decision could be had.
        """
        ...

    async def resolve(
        self,
        id: int,  # noqa: A002 - the word of every message
        verb: Verb,
        exact: Mapping[str, int],
        at_least: Mapping[str, int],
    ) -> bool:
        """Turn the holds into what was used (R6), and free the slots; True iff it was open.

        `cancel` and `withdraw` give everything back.
        """
        ...

    async def add(
        self, target: Scope | str, amounts: Mapping[str, int], request_id: str | None
    ) -> bool:
        """Count what no hold covers, under a scope's limits or under a bare key (R8).

        A bare key counts `tokens` alone. False iff the same `request_id` was counted before for this key.
        """
        ...

    async def renew(self, ids: Sequence[int]) -> Sequence[bool]:
        """Extend the leases of many; for each whether it is open and every slot of it still held."""
        ...

    async def peek(self, scopes: tuple[Scope, ...]) -> Seen:
        """Read, change nothing."""
        ...

    async def reset(self, scopes: tuple[Scope, ...]) -> None:
        """Forget what the limits of these scopes have used; slots stay."""
        ...

    def attend(self, id: int) -> None:  # noqa: A002 - the word of every message
        """From now on the holder is at work in this process: the backend renews by itself (R10)."""
        ...

    async def aclose(self) -> None:
        """Let go of what the backend holds open."""
        ...
