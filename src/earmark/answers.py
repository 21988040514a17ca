"""What a limit answers: how much is used, how much remains, and when.

`limit`, `remaining`, `retry_after` and `reset_after` are the words of every answer, in refusals, statuses
and headers alike. Times are seconds as floats, whole microseconds rounded up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from earmark.limits import Limit

_put: Final = object.__setattr__  # how a frozen value is filled


@dataclass(frozen=True, slots=True)
class Denial:
    """One limit that refused.

    Attributes:
        key: the key of the scope.
        limit: the limit that refused.
        used: units that were used (slots that were live), rounded up.
        asked: units that the request asked for.
        retry_after: seconds after which this limit admits the same ask, if nothing else uses it; None for
            concurrency, which frees by no clock, and where it never will.
        reset_after: seconds until nothing is used (a fixed window: until its end); None for concurrency.
    """

    key: str
    limit: Limit
    used: int
    asked: int
    retry_after: float | None
    reset_after: float | None

    @property
    def retryable(self) -> bool:
        """False where the ask is above what the limit can ever hold (R3)."""
        return max(self.asked, 1) <= self.limit.capacity

    def __str__(self) -> str:
        limit = self.limit
        per = "" if limit.window is None else f" per {limit.window:g} s"
        text = f"{self.key!r}: {limit.capacity} {limit.metric}{per}, {self.used} used, {self.asked} asked"
        if not self.retryable:
            return f"{text}, never possible"
        return text if self.retry_after is None else f"{text}, retry after {self.retry_after} s"


@dataclass(frozen=True, slots=True, init=False)
class LimitStatus:
    """One limit as a request found or left it.

    Attributes:
        limit: the limit.
        used: units used (live slots), rounded up.
        remaining: units left, never negative.
        reset_after: seconds until nothing is used (a fixed window: until its end); None for concurrency.
        would_refuse: whether the limit would refuse: this request, or in `peek` one that asks for nothing.
    """

    limit: Limit
    used: int
    remaining: int
    reset_after: float | None
    would_refuse: bool

    # Made for every limit of every request whose headers are asked for, hence written out.
    def __init__(
        self,
        limit: Limit,
        used: int,
        remaining: int,
        reset_after: float | None,
        would_refuse: bool,  # noqa: FBT001 - in the order of the fields
    ) -> None:
        _put(self, "limit", limit)
        _put(self, "used", used)
        _put(self, "remaining", remaining)
        _put(self, "reset_after", reset_after)
        _put(self, "would_refuse", would_refuse)


@dataclass(frozen=True, slots=True)
class ScopeStatus:
    """Every limit of one scope; `status[metric]` is the tightest of that metric."""

    key: str
    limits: tuple[LimitStatus, ...]

    def __getitem__(self, metric: str) -> LimitStatus:
        """Return the limit of `metric` with the smallest `remaining`, on a tie the first.

        Raises:
            KeyError: the scope has no limit of that metric.
        """
        found = [status for status in self.limits if status.limit.metric == metric]
        if not found:
            raise KeyError(metric)
        return min(found, key=lambda status: status.remaining)
