"""Fixed windows, aligned to the clock: a window starts at every multiple of its length (B1).

The state is the count of the window in which it was read. The next window starts from nothing, so that a
refund for an earlier one would erase what others have used since (C17): it is not given.
"""

from __future__ import annotations

from earmark.amounts import MAX_AMOUNT
from earmark.limits import Limit


class FixedWindow:
    """Count within the current window."""

    def unused(self) -> int:
        return 0

    def used(self, limit: Limit, state: int, seen: int, at: int) -> int:
        return state if at // limit.window_us == seen // limit.window_us else 0

    def debit(self, limit: Limit, state: int, amount: int, now: int) -> int:
        return min(state + amount, MAX_AMOUNT)

    def give_back(self, limit: Limit, state: int, amount: int, taken: int, now: int) -> int:
        if taken // limit.window_us != now // limit.window_us:
            return state
        return max(state - amount, 0)

    def admits_at(self, limit: Limit, state: int, need: int, seen: int) -> int:
        if state + need <= limit.capacity:
            return seen
        return self.resets_at(limit, state, seen)

    def resets_at(self, limit: Limit, state: int, seen: int) -> int:
        return seen - seen % limit.window_us + limit.window_us
