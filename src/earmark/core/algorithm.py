"""What an algorithm is, and the one search that several of them share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from earmark.limits import Limit

State = TypeVar("State")


class Algorithm(Protocol[State]):
    """The rules of one kind of limit, over its immutable state.

    A state says what was used; `seen` is the time at which it was read. All times are microseconds.
    """

    def unused(self) -> State:
        """The state of a key that has used nothing."""
        ...

    def used(self, limit: Limit, state: State, seen: int, at: int) -> int:
        """Units used at `at` >= `seen` if nothing happens in between, rounded up."""
        ...

    def debit(self, limit: Limit, state: State, amount: int, now: int) -> State:
        """The state after `amount` more is used, whatever the limit. It saturates at 2**53 − 1."""
        ...

    def admits_at(self, limit: Limit, state: State, need: int, seen: int) -> int | None:
        """The first moment from `seen` on at which `need` <= capacity units fit, if nothing happens.

        None: no clock brings it.
        """
        ...

    def resets_at(self, limit: Limit, state: State, seen: int) -> int | None:
        """The moment at which nothing is used (a fixed window: its end); None: no clock brings it."""
        ...


class Refundable(Algorithm[State], Protocol[State]):
    """An algorithm whose debits can be given back by amount (slots are freed by their own id instead)."""

    def give_back(self, limit: Limit, state: State, amount: int, taken: int, now: int) -> State:
        """The state after `amount` of what was debited at `taken` is given back, as far as it counts."""
        ...


def earliest(holds: Callable[[int], bool], guess: int, least: int) -> int:
    """Return the first integer from `least` on at which `holds`, which once true stays true.

    A closed form in doubles may miss the exact microsecond by a few; the predicate is the judge, so that
    `retry_after` is tight on both sides (R3). The search gallops out from the guess.
    """
    high = max(guess, least)
    step = 1
    while not holds(high):
        high += step
        step *= 2
    low, step = high - 1, 1
    while low >= least and holds(low):
        high = low
        low -= step
        step *= 2
    low = max(low, least - 1)
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return high
