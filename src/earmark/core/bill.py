"""What a resolver knows about money: what was used, of which model, and its price where somebody named it."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import NamedTuple

from earmark.core.money import nano_of
from earmark.limits import check_key
from earmark.usage import Usage


class Bill(NamedTuple):
    """What a request has used, as its resolver knows it.

    Attributes:
        usage: its tokens, or None where nothing is known of them.
        cost: nano-units, in place of what a price list says; None: the price list says.
        model: the model that answered; None: the one that was asked for.
        estimated: somebody's estimate has a part in the usage.
    """

    usage: Usage | None = None
    cost: int | None = None
    model: str | None = None
    estimated: bool = False


def bill_of(
    usage: int | Usage | Mapping[str, int], cost: Decimal | None, model: str | None
) -> Bill:
    """Read what a settlement was given.

    Raises:
        ValueError: a bad cost or model.
    """
    nano = None if cost is None else nano_of("cost", cost)
    return Bill(_tokens_of(usage), nano, None if model is None else check_key("model", model))


def _tokens_of(usage: int | Usage | Mapping[str, int]) -> Usage:
    if isinstance(usage, Usage):
        return usage
    if isinstance(usage, int):
        return Usage(0, 0) if usage == 0 else Usage(reported_total=usage)
    return Usage(
        usage.get("input_tokens"), usage.get("output_tokens"), reported_total=usage.get("tokens")
    )
