"""What is counted while a trace is replayed: by tenant, by limit, and over time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from earmark.answers import Denial
from earmark.core.admission import levels
from earmark.core.hold import Hold
from earmark.limits import MICROSECONDS, Limit

SLICES = 120
"""Into how many parts the time of a trace is cut."""


@dataclass(slots=True)
class TenantTally:
    """What became of the requests of one tenant. Times are microseconds."""

    requests: int = 0
    refused: int = 0
    tokens: int = 0
    refused_tokens: int = 0
    first: int | None = None
    last: int | None = None

    def refuse(self, at: int, tokens: int) -> None:
        """One was refused."""
        self.refused += 1
        self.refused_tokens += tokens
        self.first = at if self.first is None else self.first
        self.last = at


@dataclass(slots=True)
class LimitTally:
    """How full one limit of one scope was, and whom it refused.

    Attributes:
        key: the key of the scope.
        limit: the limit.
        refused: requests that it refused, or would have if its scope enforced.
        shadow: it only would have.
        peak: the most of it that was used at one moment, of 1.
        first: when it refused first, in microseconds.
        full: the same by slice of time, where anything is known.
    """

    key: str
    limit: Limit
    refused: int = 0
    shadow: bool = False
    peak: float = 0.0
    first: int | None = None
    full: dict[int, float] = field(default_factory=dict[int, float])

    def see(self, slice_: int, used: int) -> None:
        """It has used so much."""
        share = used / self.limit.capacity if self.limit.capacity else 1.0
        if share > self.full.get(slice_, -1.0):
            self.full[slice_] = share
            self.peak = max(self.peak, share)

    def refuse(self, at: int) -> None:
        """It had no room."""
        self.refused += 1
        self.first = at if self.first is None else self.first


class Tally:
    """Everything that is counted.

    Args:
        start: the first time of the trace, in microseconds.
        end: its last.
    """

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end
        self.width = max(-(-(end - start + 1) // SLICES), 1)
        self.tenants: dict[str, TenantTally] = {}
        self.limits: dict[tuple[str, str], LimitTally] = {}
        self.requests = [0] * SLICES
        self.refused = [0] * SLICES

    @property
    def seconds(self) -> float:
        """How long the trace is."""
        return (self.end - self.start) / MICROSECONDS

    def admit(self, tenant: str, tokens: int, hold: Hold) -> None:
        """A request was admitted."""
        at = hold.at
        slice_ = self._arrive(at, tenant, tokens)
        for scope, limit, used, would_refuse in levels(hold.scopes, hold.asks, hold.seen, at):
            tally = self._limit(scope.key, limit)
            tally.see(slice_, used)
            if would_refuse:
                tally.shadow = True
                tally.refuse(at)

    def pass_by(self, at: int, tenant: str, tokens: int) -> None:
        """A request came that no limit concerns."""
        self._arrive(at, tenant, tokens)

    def refuse(self, at: int, tenant: str, tokens: int, denials: Iterable[Denial]) -> None:
        """A request was refused."""
        slice_ = self._arrive(at, tenant, tokens)
        self.refused[slice_] += 1
        self.tenants[tenant].refuse(at, tokens)
        for denial in denials:
            tally = self._limit(denial.key, denial.limit)
            tally.see(slice_, denial.used)
            tally.refuse(at)

    def _arrive(self, at: int, tenant: str, tokens: int) -> int:
        slice_ = (at - self.start) // self.width
        self.requests[slice_] += 1
        tally = self.tenants.get(tenant)
        if tally is None:
            tally = self.tenants[tenant] = TenantTally()
        tally.requests += 1
        tally.tokens += tokens
        return slice_

    def _limit(self, key: str, limit: Limit) -> LimitTally:
        tally = self.limits.get((key, limit.id))
        if tally is None:
            tally = self.limits[key, limit.id] = LimitTally(key, limit)
        return tally

    def busiest(self, most: int) -> list[LimitTally]:
        """The limits that refused most, those that would have, and of those that refused nobody the fullest."""

        def rank(one: LimitTally) -> tuple[bool, bool, int, float, str]:
            return (not one.refused, one.shadow, -one.refused, -one.peak, one.key)

        return sorted(self.limits.values(), key=rank)[:most]
