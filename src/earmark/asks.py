"""What a call asks of a limiter, checked before any state changes: scopes, amounts, a lease (R12)."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Final

from earmark.amounts import MAX_AMOUNT, check_amount
from earmark.limits import CONCURRENCY, Scope, check_key, lease_microseconds, to_microseconds
from earmark.usage import Usage

_KEY: Final = attrgetter("key")


def check_scopes(scopes: tuple[Scope, ...]) -> bool:
    """Check what a call names; return whether any of it is limited.

    Raises:
        TypeError: something else than scopes.
        ValueError: two scopes with one key.
    """
    limited = False
    for scope in scopes:
        if not isinstance(scope, Scope):
            msg = f"expected a Scope, not {scope!r}"
            raise TypeError(msg)
        if scope.limits.all:
            limited = True
    if len(scopes) > 1 and len(set(map(_KEY, scopes))) < len(scopes):
        msg = f"two scopes with one key in one request: {[scope.key for scope in scopes]}"
        raise ValueError(msg)
    return limited


def checked_lease(lease: float | None, wait: float | None = None) -> int | None:
    """The lease in microseconds; a wait is a number of seconds, and 0 waits for nothing."""
    if wait is not None and wait != 0:
        to_microseconds("wait", wait)
    return None if lease is None else lease_microseconds(lease)


def asks_of(tokens: int | Usage, amounts: Mapping[str, int] | None) -> Mapping[str, int]:
    """What a request asks, by metric.

    Raises:
        ValueError: a bad amount or metric, or one that `tokens` asks already.
    """
    if amounts is None and type(tokens) is int and 0 <= tokens <= MAX_AMOUNT:
        return {"tokens": tokens}
    asks: dict[str, int] = {}
    if isinstance(tokens, Usage):
        asks.update(tokens.floors())
    else:
        asks["tokens"] = check_amount("tokens", tokens)
    for metric, amount in (amounts or {}).items():
        check_key("metric", metric)
        if metric == CONCURRENCY:
            msg = "a request takes one slot of a concurrency limit: amounts cannot name it"
            raise ValueError(msg)
        if metric in asks:
            msg = f"amounts names {metric!r}, which tokens={tokens!r} asks already"
            raise ValueError(msg)
        asks[metric] = check_amount(metric, amount)
    return asks


def added_of(tokens: int | Usage, *, bare: bool) -> Mapping[str, int]:
    """What an addition counts, by metric."""
    if isinstance(tokens, Usage):
        return {"tokens": tokens.total or 0} if bare else tokens.determined()
    if type(tokens) is int and tokens < 0:
        return {}
    return {"tokens": check_amount("tokens", tokens)}
