"""Between the library and the plain model: calls without an event loop, and one's words in those of the other.

A store in memory never suspends: a call is run by one `send`, and one that suspended would be an error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from earmark.limits import Limit, Limits, Scope
from earmark.testing.histories.steps import Offer
from earmark.testing.histories.values import SECOND, Line, Place

T = TypeVar("T")

# The double of more microseconds than these, in seconds, no longer tells one from the next.
EXACT: Final = 2**51


def by_hand(call: Coroutine[Any, Any, T]) -> T:
    """Run a call that never suspends."""
    try:
        call.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    call.close()
    msg = "the call has suspended: it needs an event loop"
    raise AssertionError(msg)


def us_of(seconds: float) -> int:
    """Whole microseconds, exact below 2**51."""
    return round(seconds * SECOND)


@functools.lru_cache(4_096)
def line_of(limit: Limit) -> Line:
    """What the library calls a limit, in the model's words."""
    window = 0 if limit.metric == "concurrency" else us_of(limit.window or 0)
    return Line(limit.metric, limit.amount, window, limit.algorithm, limit.burst)


def limit_of(line: Line) -> Limit:
    """The library's limit for one of the model's."""
    return Limit(line.metric, line.amount, line.window / SECOND, line.algorithm, line.burst)  # type: ignore[arg-type]


@functools.lru_cache(4_096)
def scope_of(offer: Offer) -> Scope:
    """The library's scope for an offer."""
    named: dict[str, Any] = dict(offer.named)
    also = map(limit_of, offer.also)
    limits = Limits(**named, algorithm=offer.algorithm, also=also)  # type: ignore[arg-type]
    return Scope(offer.key, limits, enforce=offer.enforce)


def first_when(us: int, true: Callable[[int], bool]) -> bool:
    """Whether `true` holds from `us` on and not one microsecond before (beyond 2**51: as near as a double tells)."""
    slack = 0 if us < EXACT else us >> 50
    return true(us + slack) and (us == 0 or not true(us - 1 - slack))


def place_of(scope: Scope) -> Place:
    """A scope in the model's words."""
    return Place(scope.key, tuple(map(line_of, scope.limits)), scope.enforce)
