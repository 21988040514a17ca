"""What a stream must have cost: what a test of a gateway compares its counts with."""

from __future__ import annotations

from earmark.ending import after_stream
from earmark.streams.observed import Observed


def charged(hold: int, observed: Observed, metric: str = "tokens") -> int:
    """How much of a metric a reservation is charged whose stream has ended so.

    Args:
        hold: what was asked of it.
        observed: what an observer of the same stream saw: a stream's own `observed`, or that of `observe_stream`.
        metric: `tokens`, or another that tokens are counted by.
    """
    _, exact, at_least, _ = after_stream(observed)
    return exact.get(metric, max(hold, at_least.get(metric, 0)))
