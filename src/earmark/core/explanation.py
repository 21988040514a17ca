"""What every limit would say to a request, in words that can be read: computed from what a store saw."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import repeat

from earmark.answers import Explanation, LimitExplanation
from earmark.core.admission import States, admits, algorithm_of, retry_after
from earmark.limits import CONCURRENCY, MICROSECONDS, Scope


def explanation(
    scopes: tuple[Scope, ...],
    asks: Mapping[str, int],
    seen: tuple[States, int],
    unheld: States | None,
) -> Explanation:
    """Explain what a request would be answered.

    Args:
        scopes: in the order of refusals.
        asks: units by metric.
        seen: the state of every limit, and the instant at which it was read.
        unheld: the states as they would be if nothing were held; None: the store cannot tell.
    """
    states, at = seen
    pairs = [(scope, limit) for scope in scopes for limit in scope.limits]
    without = repeat(None, len(pairs)) if unheld is None else unheld
    limits: list[LimitExplanation] = []
    for (scope, limit), state, free in zip(pairs, states, without, strict=True):
        rules = algorithm_of(limit)
        ask = asks.get(limit.metric, limit.unasked)
        used = rules.used(limit, state, at, at)
        if limit.metric == CONCURRENCY or not used:
            held: int | None = used  # a slot is nothing but held, and of nothing there is no part
        else:
            held = None if free is None else used - rules.used(limit, free, at, at)
        refuses = ask is not None and not admits(limit, used, ask)
        limits.append(
            LimitExplanation(
                key=scope.key,
                limit=limit,
                enforce=scope.enforce,
                used=used,
                held=held,
                asked=ask,
                would_refuse=refuses,
                retry_after=retry_after(limit, state, ask or 0, at) if refuses else 0.0,
            )
        )
    return Explanation(tuple(limits), at / MICROSECONDS)
