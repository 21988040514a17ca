"""Token buckets: what was used drains at `amount` per window, and a charge may drive it into debt.

The state is (used, written, amount): the double that was used when it was last written, that time, and
the amount of the limit that wrote it. What was used is kept, not the level, so that a changed amount or
burst neither forgives nor charges (R17); debt is `used` above the capacity. The drain since the last write
runs at the rate of the limit that writes or asks, and comes before any change (B17): idle time cannot
erase a charge that comes after it.
"""

from __future__ import annotations

import math

from earmark.amounts import MAX_AMOUNT
from earmark.core.algorithm import earliest
from earmark.core.sliding_window import TOLERANCE
from earmark.limits import Limit

Level = tuple[float, int, int]


class TokenBucket:
    """Continuous refill with debt."""

    def unused(self) -> Level:
        return (0.0, 0, 0)

    def used(self, limit: Limit, state: Level, seen: int, at: int) -> int:
        scale = max(float(limit.amount), state[0])
        exact = drained(limit, state, at)
        return min(max(math.ceil(exact - scale * TOLERANCE), 0), MAX_AMOUNT)

    def debit(self, limit: Limit, state: Level, amount: int, now: int) -> Level:
        used = min(drained(limit, state, now) + amount, float(MAX_AMOUNT))
        return (used, now, limit.amount)

    def give_back(self, limit: Limit, state: Level, amount: int, taken: int, now: int) -> Level:
        # Never above its capacity (B18): what is used does not fall below nothing.
        return (max(drained(limit, state, now) - amount, 0.0), now, limit.amount)

    def admits_at(self, limit: Limit, state: Level, need: int, seen: int) -> int:
        room = limit.capacity - need
        return earliest(
            lambda at: self.used(limit, state, seen, at) <= room,
            _falls_to(limit, state, room),
            seen,
        )

    def resets_at(self, limit: Limit, state: Level, seen: int) -> int | None:
        if not limit.amount:
            return None
        return earliest(
            lambda at: self.used(limit, state, seen, at) == 0, _falls_to(limit, state, 0), seen
        )


def counts_until(state: Level, window_us: int) -> int:
    """The moment from which the state no longer matters: full, and a window since its last write.

    A bucket that never refills (amount 0) counts for one window.
    """
    used, written, amount = state
    window_over = written + window_us
    if not amount:
        return window_over
    return max(window_over, written + math.ceil(used * window_us / amount))


def drained(limit: Limit, state: Level, at: int) -> float:
    """What is still used at `at`. A mirror repeats these operations in this order.

    A state that no longer counts is gone, also for a limit that would refill more slowly.
    """
    used, written, _ = state
    if at >= written + limit.window_us and at >= counts_until(state, limit.window_us):
        return 0.0
    return max(used - float(at - written) * float(limit.amount) / float(limit.window_us), 0.0)


def _falls_to(limit: Limit, state: Level, room: int) -> int:
    """About when no more than `room` is used."""
    used, written, _ = state
    return written + math.ceil(max(used - room, 0.0) * limit.window_us / limit.amount)
