"""How limits, scopes and asks are written down, in a store and in a token: short lists that JSON can hold.

A limit's name is the letter of its algorithm, the window (whole seconds, or microseconds and a "u"), ":" and the
metric; the usual metrics go by one letter, and any other has "=" in front. Slots are "c". A scope is its key, of
each limit the name and the amount, or [amount, capacity] where that is another, and a 0 at the end if it is not
enforced.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from earmark.limits import CONCURRENCY, MICROSECONDS, Algorithm, Limit, Limits, Scope

_LETTERS: Final[Mapping[Algorithm, str]] = {
    "fixed_window": "f",
    "sliding_window": "s",
    "token_bucket": "b",
}
_ALGORITHMS: Final[Mapping[str, Algorithm]] = {letter: name for name, letter in _LETTERS.items()}

_SLOT: Final = "c"

_METRICS: Final = {
    "requests": "r",
    "tokens": "t",
    "input_tokens": "i",
    "output_tokens": "o",
    "uncached_tokens": "u",
    "uncached_input_tokens": "n",
}
_METRIC_OF: Final = {letter: metric for metric, letter in _METRICS.items()}


def write_limits(limits: Limits | list[Limit]) -> list[Any]:
    """Names and amounts by turns."""
    written: list[Any] = []
    for limit in limits:
        same = limit.capacity == limit.amount
        written += [_name(limit), limit.amount if same else [limit.amount, limit.capacity]]
    return written


def write_scope(scope: Scope) -> list[Any]:
    """A scope with its limits."""
    return [scope.key, *write_limits(scope.limits), *(() if scope.enforce else (0,))]


def read_scope(written: list[Any]) -> Scope:
    """What `write_scope` has written.

    Raises:
        ValueError, TypeError, IndexError: it has not written this.
    """
    key, *parts = written
    enforce = len(parts) % 2 == 0
    if not enforce and (type(parts[-1]) is not int or parts.pop() != 0):
        msg = "a scope ends with a limit or with 0"
        raise ValueError(msg)
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return Scope(key, Limits(also=[read_limit(*pair) for pair in pairs]), enforce=enforce)


def write_metric(metric: str) -> str:
    """The letter of a metric."""
    return _METRICS.get(metric) or f"={metric}"


def write_amounts(amounts: Mapping[str, int]) -> dict[str, int]:
    """Amounts by the letter of their metric."""
    return {write_metric(metric): amount for metric, amount in amounts.items()}


def read_amounts(written: Mapping[str, int]) -> dict[str, int]:
    """What `write_amounts` has written."""
    return {_metric(letter): amount for letter, amount in written.items()}


def _name(limit: Limit) -> str:
    if limit.metric == CONCURRENCY:
        return _SLOT
    whole, rest = divmod(limit.window_us, MICROSECONDS)
    length = f"{limit.window_us}u" if rest else str(whole)
    return f"{_LETTERS[limit.algorithm]}{length}:{write_metric(limit.metric)}"


def read_limit(name: str, amount: int | list[int]) -> Limit:
    """The limit of a name, with its amount, or [amount, capacity].

    Raises:
        ValueError, TypeError, IndexError, KeyError: it is no such name.
    """
    amount, burst = amount if isinstance(amount, list) else (amount, None)
    if name == _SLOT:
        return Limit(CONCURRENCY, amount)
    length, _, metric = name[1:].partition(":")
    window = int(length[:-1]) / MICROSECONDS if length.endswith("u") else int(length)
    return Limit(_metric(metric), amount, window, _ALGORITHMS[name[0]], burst)


def _metric(letter: str) -> str:
    return _METRIC_OF.get(letter) or letter[1:]
