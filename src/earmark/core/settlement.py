"""What a hold is, and what it becomes when its reservation is resolved (R6, R7)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from earmark.amounts import MAX_AMOUNT, check_amount
from earmark.core.hold import Hold, Verb
from earmark.limits import CONCURRENCY, REQUESTS, check_key
from earmark.usage import TOKEN_METRICS, Usage

_PROVIDER_FIELDS: Final = frozenset(
    {
        "prompt_tokens",
        "completion_tokens",
        "total_tokens",
        "cached_tokens",
        "reasoning_tokens",
        "cached_input_tokens",
        "cache_write_tokens",
        "cache_read_input_tokens",
        "cache_creation_input_tokens",
        "reported_total",
        "inputTokens",
        "outputTokens",
        "totalTokens",
        "promptTokenCount",
        "candidatesTokenCount",
        "totalTokenCount",
        "prompt_eval_count",
        "eval_count",
    }
)


Amounts = Mapping[str, int]
"""Metric to units."""

Known = tuple[Amounts, Amounts]
"""Metric to what was used exactly; metric to what was used at least, where the first does not name it."""

NOTHING: Final[Mapping[str, int]] = MappingProxyType({})


def known_of(usage: int | Usage | Mapping[str, int]) -> Known:
    """Read what a settlement was given: tokens, a `Usage`, or a mapping of metric to amount.

    Raises:
        ValueError: an amount out of range, or a provider's field name instead of a metric.
    """
    if type(usage) is int and 0 <= usage <= MAX_AMOUNT:
        return {"tokens": usage}, NOTHING
    if isinstance(usage, Usage):
        exact = usage.determined()
        if len(exact) == len(TOKEN_METRICS):
            return exact, NOTHING
        floors = usage.floors().items()
        return exact, {metric: least for metric, least in floors if least and metric not in exact}
    if isinstance(usage, Mapping):
        return _known_of_mapping(usage)
    if isinstance(usage, (int, float)):
        check_amount("usage", usage)
    msg = (
        "usage must be an integer (tokens), a Usage or a mapping of metric to amount, "
        f"not {usage!r}: usage_from_response reads a provider's body or object, and where the outcome "
        "is unknown close_reserved_only keeps what was held"
    )
    raise ValueError(msg)


def _known_of_mapping(usage: Mapping[str, int]) -> Known:
    exact: dict[str, int] = {}
    for metric, amount in usage.items():
        check_key("metric", metric)
        if metric in _PROVIDER_FIELDS:
            msg = f"{metric!r} is a provider's field, not a metric: settle usage_from_response(body) instead"
            raise ValueError(msg)
        if metric == CONCURRENCY:
            msg = "concurrency counts slots, which a settlement frees: it takes no amount of them"
            raise ValueError(msg)
        exact[metric] = check_amount(metric, amount)
    exact.pop(REQUESTS, None)  # not trued up (R6)
    read = max(exact.get("input_tokens", 0), exact.get("uncached_input_tokens", 0))
    written = exact.get("output_tokens", 0)
    uncached = max(
        exact.get("uncached_input_tokens", 0) + written,
        exact.get("uncached_tokens", 0),
    )
    whole = exact.get("tokens", MAX_AMOUNT)  # parts cannot exceed it
    at_least = {
        "tokens": min(max(read + written, uncached), MAX_AMOUNT),
        "input_tokens": min(read, whole),
        "uncached_tokens": min(uncached, whole),
    }
    return exact, at_least


UNSENT: Final[frozenset[Verb]] = frozenset({"cancel", "withdraw"})
"""The verbs of a request that was never sent: it used nothing."""


def used(
    hold: Hold, verb: Verb, exact: Mapping[str, int], at_least: Mapping[str, int]
) -> Mapping[str, int]:
    """What was really used, by metric; a metric that is not named keeps its hold (R6, R7).

    It is what is known exactly, else the hold raised to what is known.
    """
    if verb in UNSENT:
        return {metric: 0 for scope in hold.scopes for metric in scope.limits.by_metric}
    raised = {metric: max(hold.asks.get(metric, 0), known) for metric, known in at_least.items()}
    return {**raised, **exact}
