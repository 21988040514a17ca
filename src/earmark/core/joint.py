"""Holds that are decided together, at one instant and all or none (R2), and resolved each by itself.

One request in several attempts is such a thing: what its user holds outlives an attempt, and what a provider holds for
the attempt does not. A store judges the joint hold as it does any other; admitted, it falls into its parts, and nothing
knows the whole any more.
"""

from __future__ import annotations

from earmark.core.hold import Hold


class Part(Hold):
    """One that belongs to others: they are settled together, each by itself."""

    __slots__ = ()
    settles_alone = False


class Joint(Hold):
    """A hold over the scopes of several, which ask the same.

    Attributes:
        parts: the holds, in the order of their scopes; messages name the whole by the id of the first.
    """

    __slots__ = ("parts",)

    parts: tuple[Hold, ...]

    def __init__(self, *parts: Hold) -> None:
        first = parts[0]
        self.parts = parts
        self.id = first.id
        self.request_id = None
        self.asks = first.asks
        self.lease_us = first.lease_us
        self.scopes = tuple(scope for part in parts for scope in part.scopes)

    def divide(self) -> None:
        """Write into each part what the store, or who decided in its place, saw of it."""
        first = 0
        for part in self.parts:
            last = first
            for scope in part.scopes:
                last += len(scope.limits.all)
            part.at = self.at
            part.seen = self.seen[first:last]
            first = last
        if self.degraded:
            self._divide_place()

    def _divide_place(self) -> None:
        """Write into each part where the whole was taken, since that was not in the store."""
        first = 0
        for part in self.parts:
            last = first + len(part.scopes)
            part.place = self.place
            if hasattr(self, "shares"):
                part.shares = self.shares[first:last]
            first = last


def parts_of(hold: Hold) -> tuple[Hold, ...]:
    """What a hold falls into once it is admitted: itself, where it is no joint one."""
    return hold.parts if isinstance(hold, Joint) else (hold,)


def divided(hold: Hold) -> Hold:
    """Return a hold that was admitted; a joint one has fallen into its parts."""
    if isinstance(hold, Joint):
        hold.divide()
    return hold
