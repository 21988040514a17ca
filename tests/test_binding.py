"""What binds an admission (B56), which is what its rate-limit headers show: against a reading of all its statuses."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from earmark import Limiter, LimitStatus, MemoryBackend, RateLimited, Reservation, Scope
from earmark.shielding import at_once
from earmark.testing import ManualClock
from earmark.testing.strategies import scope_sets
from tests.reached import Reached
from tests.scale import examples


def tightest(admission: Reservation) -> tuple[dict[str, LimitStatus], set[str]]:
    """By metric what has the least left, on a tie the first; and what was met on the way."""
    found: dict[str, LimitStatus] = {}
    met: set[str] = set()
    for scope, status in zip(admission.scopes, admission.statuses, strict=True):
        for one in status.limits:
            metric = one.limit.metric
            if not scope.enforce:
                met.add("a scope that does not enforce")
            elif metric == "concurrency":
                met.add("slots")
            elif metric not in found:
                found[metric] = one
            else:
                met.add("a choice")
                found[metric] = min(found[metric], one, key=lambda status: status.remaining)
    return found, met


def test_b56_the_tightest_of_each_metric_binds() -> None:
    """B56: of a reservation, and of an attempt whose target is the last of the scopes."""
    reached: Final = Reached("what binds")

    @settings(max_examples=examples(60))
    @given(scope_sets(), st.integers(0, 3), st.booleans())
    def law(scopes: tuple[Scope, ...], tokens: int, attempts: bool) -> None:
        limiter = Limiter(MemoryBackend(clock=ManualClock(20.0)))

        async def admitted() -> None:
            if not attempts:
                async with await limiter.pre_commit(*scopes, tokens=tokens) as reservation:
                    check(reservation)
                return
            async with limiter.once(*scopes[:-1], tokens=tokens) as once:
                check(await once.attempt(scopes[-1]))

        with suppress(RateLimited):
            at_once(admitted())

    def check(admission: Reservation) -> None:
        found, met = tightest(admission)
        assert admission.binding == found
        reached.history({*met, type(admission).__name__})

    law()
    reached.require(
        0.02, {"a scope that does not enforce", "slots", "a choice", "Attempt", "Reservation"}
    )
