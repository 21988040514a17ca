"""What a limit answers: how much is used, how much remains, and when.

`limit`, `remaining`, `retry_after` and `reset_after` are the words of every answer, in refusals, statuses
and headers alike. Times are seconds as floats, whole microseconds rounded up.
"""

from __future__ import annotations

from dataclasses import dataclass

from earmark.frozen import setters
from earmark.limits import MICROSECONDS, Limit, spelled


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
        per = "" if limit.window is None else f" per {spelled(limit.window)} s"
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
        _put_limit(self, limit)
        _put_used(self, used)
        _put_remaining(self, remaining)
        _put_reset_after(self, reset_after)
        _put_would_refuse(self, would_refuse)


_put_limit, _put_used, _put_remaining, _put_reset_after, _put_would_refuse = setters(LimitStatus)


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


@dataclass(frozen=True, slots=True)
class LimitExplanation:
    """What one limit would say to a request.

    Attributes:
        key: the key of the scope.
        limit: the limit.
        enforce: whether its scope enforces; one that does not never refuses.
        used: units used (live slots), rounded up.
        held: of these, what open reservations would give back if all of them were cancelled now. Memory tells it of
            every limit. Redis tells it of slots, all of which are held, and of a limit of which nothing is used; of
            any other it is None, since counts do not say whose they are.
        asked: units that the request asks for; None: it does not name the metric, and is not judged by it.
        would_refuse: whether the limit has no room for that.
        retry_after: seconds until it has, if nothing else happens; 0.0: now. None: no clock brings it, since slots are
            freed by their holders, or since the ask is above what the limit can ever hold.
    """

    key: str
    limit: Limit
    enforce: bool
    used: int
    held: int | None
    asked: int | None
    would_refuse: bool
    retry_after: float | None

    def __str__(self) -> str:
        held = "" if self.held is None else f" ({self.held} held)"
        text = (
            f"{self.key!r}: {self.used} of {self.limit.capacity} {_of(self.limit)} used{held}, "
            f"{self.asked or 0} asked"
        )
        if not self.would_refuse:
            return f"{text}: fits"
        said = f"{text}: {'refuses' if self.enforce else 'would refuse'}"
        if self.retry_after is None:
            return f"{said}; no clock tells until when"
        return f"{said}, fits in {self.retry_after} s"


@dataclass(frozen=True, slots=True)
class Explanation:
    """What `pre_commit` would be answered at one instant, and why. Nothing was counted.

    Attributes:
        limits: every limit of every scope, in the order of refusals.
        at: seconds since the epoch, by the backend's clock.
    """

    limits: tuple[LimitExplanation, ...]
    at: float

    @property
    def refused_by(self) -> tuple[LimitExplanation, ...]:
        """The limits that would refuse, in order; those of scopes that do not enforce are not among them."""
        return tuple(one for one in self.limits if one.would_refuse and one.enforce)

    @property
    def admitted(self) -> bool:
        """Whether the request would be admitted."""
        return not self.refused_by

    @property
    def feasible_after(self) -> float | None:
        """Seconds until it is admitted, exactly, if nothing else happens; 0.0: now; None: no clock brings it."""
        waits = [one.retry_after for one in self.refused_by]
        known = [wait for wait in waits if wait is not None]
        return max(known, default=0.0) if len(known) == len(waits) else None

    @property
    def feasible_at(self) -> float | None:
        """The same as a time, in seconds since the epoch."""
        after = self.feasible_after
        if after is None:
            return None
        # In whole microseconds: a sum of floats may miss the one at which the limits admit it.
        return (round(self.at * MICROSECONDS) + round(after * MICROSECONDS)) / MICROSECONDS

    def __str__(self) -> str:
        after = self.feasible_after
        if self.admitted:
            head = "admitted"
        elif after is None:
            head = "refused; no clock tells until when"
        else:
            head = f"refused; admitted in {after} s, if nothing else happens"
        return "\n".join([head, *map(str, self.limits)])


def _of(limit: Limit) -> str:
    return limit.metric if limit.window is None else f"{limit.metric} per {spelled(limit.window)} s"
