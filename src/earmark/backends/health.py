"""How a backend is doing: what an operator asks, and a readiness probe."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Health:
    """A backend at one moment.

    Attributes:
        available: the store can be reached from every event loop that uses it.
        reason: why it cannot be reached, or None.
        owed: messages that are kept for it.
        lost: messages that could not be kept, or not be delivered in time: what they would have given back stays
            debited to the end of its window, and held for one lease.
        admitted_without_store: requests that were admitted while it could not be reached.
        round_trips: round trips to the store that brought answers; each carries the messages of many callers.
        round_trip_seconds: how long all of them took together.
        worst_case: what all processes together may admit during an outage, in words.
    """

    available: bool = True
    reason: str | None = None
    owed: int = 0
    lost: int = 0
    admitted_without_store: int = 0
    round_trips: int = 0
    round_trip_seconds: float = 0.0
    worst_case: str = "there is no store that could be out of reach"
