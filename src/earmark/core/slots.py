"""Slots of a concurrency limit: each is one member with its own expiry, never a bare counter (R10).

The state is the number of live slots. No clock frees them that could be promised: a refusal by concurrency
has no `retry_after`.
"""

from __future__ import annotations

from earmark.limits import Limit


class Slots:
    """Live slots."""

    def unused(self) -> int:
        return 0

    def used(self, limit: Limit, state: int, seen: int, at: int) -> int:
        return state

    def debit(self, limit: Limit, state: int, amount: int, now: int) -> int:
        return state + amount

    def admits_at(self, limit: Limit, state: int, need: int, seen: int) -> None:
        return None

    def resets_at(self, limit: Limit, state: int, seen: int) -> None:
        return None
