"""Admission over many limits of many scopes, and every word of its answer.

A store judges with `admits` and returns the states that it saw; denials and statuses are computed from
them here, once for all stores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from earmark.amounts import MAX_AMOUNT
from earmark.answers import Denial, LimitStatus, ScopeStatus
from earmark.core.algorithm import Algorithm
from earmark.core.fixed_window import FixedWindow
from earmark.core.sliding_window import SlidingWindow
from earmark.core.slots import Slots
from earmark.core.token_bucket import TokenBucket
from earmark.limits import CONCURRENCY, MICROSECONDS, Limit, Scope

FIXED_WINDOW: Final = FixedWindow()
SLIDING_WINDOW: Final = SlidingWindow()
TOKEN_BUCKET: Final = TokenBucket()
SLOTS: Final = Slots()

_BY_NAME: Final[Mapping[str, Algorithm[Any]]] = {
    "fixed_window": FIXED_WINDOW,
    "sliding_window": SLIDING_WINDOW,
    "token_bucket": TOKEN_BUCKET,
}

States = Sequence[Any]
"""One state per limit, in the order of the scopes and of their limits."""


def algorithm_of(limit: Limit) -> Algorithm[Any]:
    """The rules of a limit."""
    return SLOTS if limit.metric == CONCURRENCY else _BY_NAME[limit.algorithm]


def admits(limit: Limit, used: int, ask: int) -> bool:
    """Whether `ask` fits (R1): a request always needs room for one unit."""
    return used + (ask or 1) <= limit.capacity


def denials(
    scopes: tuple[Scope, ...], asks: Mapping[str, int], seen: States, at: int
) -> Iterator[Denial]:
    """Every limit of an enforcing scope that refused, in order (R3)."""
    for scope, limit, state, ask in _walk(scopes, asks, seen):
        if scope.enforce and ask is not None:
            used = algorithm_of(limit).used(limit, state, at, at)
            if not admits(limit, used, ask):
                yield _denial(scope.key, limit, state, ask, at)


def _denial(key: str, limit: Limit, state: object, ask: int, at: int) -> Denial:
    algorithm = algorithm_of(limit)
    return Denial(
        key=key,
        limit=limit,
        used=algorithm.used(limit, state, at, at),
        asked=ask,
        retry_after=retry_after(limit, state, ask, at),
        reset_after=_seconds_until(algorithm.resets_at(limit, state, at), at),
    )


def retry_after(limit: Limit, state: object, ask: int, at: int) -> float | None:
    """Seconds until a limit admits an ask if nothing else happens; None: no clock brings it (R3)."""
    need = ask or 1
    if need > limit.capacity:
        return None
    return _seconds_until(algorithm_of(limit).admits_at(limit, state, need, at), at)


def statuses(
    scopes: tuple[Scope, ...], asks: Mapping[str, int] | None, seen: States, at: int
) -> tuple[ScopeStatus, ...]:
    """One status per scope: after the asks were debited, or, without asks, as it is seen.

    `would_refuse` judges these asks; without asks, one that asks for nothing.
    """
    states = iter(seen)
    found: list[ScopeStatus] = []
    for scope in scopes:
        limits: list[LimitStatus] = []
        for limit in scope.limits.all:
            ask = 0 if asks is None else asks.get(limit.metric, limit.unasked)
            debited = None if asks is None else ask
            limits.append(_status(limit, next(states), ask, debited, at))
        found.append(ScopeStatus(scope.key, tuple(limits)))
    return tuple(found)


def binding(
    scopes: tuple[Scope, ...], asks: Mapping[str, int], seen: States, at: int
) -> dict[str, LimitStatus]:
    """By metric, the limit of an enforcing scope of which the least remains once the asks were debited.

    The same as `statuses` without those that no header shows: concurrency is not among them.
    """
    found: dict[str, LimitStatus] = {}
    states = iter(seen)
    for scope in scopes:
        for limit in scope.limits.all:
            state = next(states)
            if scope.enforce and limit.metric != CONCURRENCY:
                ask = asks.get(limit.metric, limit.unasked)
                keep_tightest(found, _status(limit, state, ask, ask, at))
    return found


def keep_tightest(found: dict[str, LimitStatus], one: LimitStatus) -> None:
    """Keep it for its metric where less of it remains than of the one that is kept; on a tie the first stays."""
    kept = found.setdefault(one.limit.metric, one)
    if one.remaining < kept.remaining:
        found[one.limit.metric] = one


def _status(limit: Limit, state: Any, ask: int | None, debited: int | None, at: int) -> LimitStatus:  # noqa: ANN401 - each algorithm has its own
    """One limit, judged for `ask`, and then with so much debited."""
    if limit.algorithm == "fixed_window" and limit.metric != CONCURRENCY:
        # As `FixedWindow` has it, without its calls: most limits of most headers are such.
        used: int = state
        reset_after: float | None = (limit.window_us - at % limit.window_us) / MICROSECONDS
        would_refuse = ask is not None and used + (ask or 1) > limit.capacity
        if debited:
            used = min(used + debited, MAX_AMOUNT)
    else:
        rules = algorithm_of(limit)
        used = rules.used(limit, state, at, at)
        would_refuse = ask is not None and not admits(limit, used, ask)
        if debited is not None:
            state = rules.debit(limit, state, debited, at)
            used = rules.used(limit, state, at, at)
        reset_after = _seconds_until(rules.resets_at(limit, state, at), at)
    return LimitStatus(limit, used, max(0, limit.capacity - used), reset_after, would_refuse)


def levels(
    scopes: tuple[Scope, ...], asks: Mapping[str, int], seen: States, at: int
) -> Iterator[tuple[Scope, Limit, int, bool]]:
    """Of every limit that an admitted request asks, what is used after it, and whether it would have refused.

    The same as `statuses` without its times, which take longer to find than all the rest.
    """
    for scope, limit, state, ask in _walk(scopes, asks, seen):
        if ask is not None:
            rules = algorithm_of(limit)
            refuses = not (scope.enforce or admits(limit, rules.used(limit, state, at, at), ask))
            yield (
                scope,
                limit,
                rules.used(limit, rules.debit(limit, state, ask, at), at, at),
                refuses,
            )


def _walk(
    scopes: tuple[Scope, ...], asks: Mapping[str, int], seen: States
) -> Iterator[tuple[Scope, Limit, Any, int | None]]:
    states = iter(seen)
    for scope in scopes:
        for limit in scope.limits:
            yield scope, limit, next(states), asks.get(limit.metric, limit.unasked)


def _seconds_until(moment: int | None, at: int) -> float | None:
    return None if moment is None else (moment - at) / MICROSECONDS
