"""Sliding windows: the current window's count plus the previous one's, weighted by what still overlaps.

The state is (current, previous) at the time at which it was read. `used` is rounded up after a tolerance
of 2**-48 of the largest number involved, so that what is whole on paper is whole in doubles.
"""

from __future__ import annotations

import math
from typing import Final

from earmark.amounts import MAX_AMOUNT
from earmark.core.algorithm import earliest
from earmark.limits import Limit

TOLERANCE: Final = 2.0**-48

Counts = tuple[int, int]


def at_window(state: Counts, passed: int) -> Counts:
    """The state as it reads `passed` windows later."""
    if passed == 0:
        return state
    return (0, state[0]) if passed == 1 else (0, 0)


class SlidingWindow:
    """Two weighted windows."""

    def unused(self) -> Counts:
        return (0, 0)

    def used(self, limit: Limit, state: Counts, seen: int, at: int) -> int:
        window = limit.window_us
        current, previous = at_window(state, at // window - seen // window)
        exact = current + previous * ((window - at % window) / window)
        scale = max(float(limit.amount), float(current) + float(previous))
        return min(max(math.ceil(exact - scale * TOLERANCE), 0), MAX_AMOUNT)

    def debit(self, limit: Limit, state: Counts, amount: int, now: int) -> Counts:
        return (min(state[0] + amount, MAX_AMOUNT), state[1])

    def give_back(self, limit: Limit, state: Counts, amount: int, taken: int, now: int) -> Counts:
        current, previous = state
        passed = now // limit.window_us - taken // limit.window_us
        if passed == 0:
            return (max(current - amount, 0), previous)
        return (current, max(previous - amount, 0)) if passed == 1 else state

    def admits_at(self, limit: Limit, state: Counts, need: int, seen: int) -> int:
        room = limit.capacity - need
        return earliest(
            lambda at: self.used(limit, state, seen, at) <= room,
            self._guess(limit, state, room, seen),
            seen,
        )

    def resets_at(self, limit: Limit, state: Counts, seen: int) -> int:
        return earliest(
            lambda at: self.used(limit, state, seen, at) == 0,
            self._guess(limit, state, 0, seen),
            seen,
        )

    @staticmethod
    def _guess(limit: Limit, state: Counts, room: int, seen: int) -> int:
        """About when no more than `room` is used: where the weight of a falling count meets it."""
        window = limit.window_us
        start = seen - seen % window
        current, previous = state
        if current <= room:
            weight = (room - current) / previous if previous else 1.0
        else:
            start += window
            weight = room / current
        return start + math.ceil(window * (1.0 - min(weight, 1.0)))
