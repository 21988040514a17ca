"""What is posted for a reservation: its real cost where somebody knows it, else what was held, and flagged (C35)."""

from __future__ import annotations

from typing import NamedTuple

from earmark.core.bill import Bill
from earmark.core.hold import Verb
from earmark.prices import Price


class Posted(NamedTuple):
    """What is posted.

    Attributes:
        cost: in nano-units.
        estimated: what was held, or somebody's estimate, has a part in it.
    """

    cost: int
    estimated: bool


def posted(
    verb: Verb, held: int, bill: Bill | None, price: Price | None, *, keeps: bool = True
) -> Posted:
    """What a resolution posts.

    Args:
        verb: how the reservation is resolved: by any but `cancel` and `withdraw`, which post nothing.
        held: what it holds, in nano-units.
        bill: what is known of its usage.
        price: what that costs.
        keeps: whether one whose outcome is unknown costs what it held; else only what is known of it.
    """
    known = bill or Bill()
    if verb == "settle" and known.cost is not None:
        return Posted(known.cost, known.estimated)
    at_least = 0
    if known.usage is not None:
        if verb == "settle" and known.usage.total == 0:
            return Posted(0, known.estimated)
        if price is not None:
            cost = price.cost(known.usage)
            if verb == "settle" and cost.complete:
                return Posted(cost.nano, known.estimated)
            at_least = cost.nano
    stays = held if keeps or verb != "close" else 0
    return Posted(max(stays, at_least), estimated=True)
