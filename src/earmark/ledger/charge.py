"""What is held for one request, and what a resolver says of it: the two records that a ledger is sent."""

from __future__ import annotations

from dataclasses import dataclass

from earmark.budgets import Budget
from earmark.core.bill import Bill
from earmark.core.hold import Verb
from earmark.prices import Price
from earmark.usage import Usage


@dataclass(slots=True, eq=False)
class Charge:
    """The money of one reservation, as it was admitted.

    Attributes:
        request_id: what the request is called in the world.
        reservation: what the reservation is called there, which alone names it for ever; of one that another process
            made, that one's name.
        key: whose request it is: the first scope's key, else the first budget's.
        budgets: what it counts in.
        model: the model that was asked for.
        currency: what it is in.
        estimate: what it may use, where the amount follows from it and from the price.
        amount: nano-units that are held.
        price: what the model costs.
        metadata: what its row is to say besides, as JSON.
        at: the instant of its admission, in microseconds, by which its periods are chosen (C48).
        unsaid: the store has not heard of it: it was admitted without it, so that its resolver brings it along.
        adopted: it was pending before, by another call with this request id.
        placed: the ledger holds it just so, or the allowance has admitted it.
        gone: its caller has gone while it was being held.
        asker: the name by which whoever asks for it withdraws: that of the reservation that would have been its own.
    """

    request_id: str
    reservation: str
    key: str = ""
    budgets: tuple[Budget, ...] = ()
    model: str | None = None
    currency: str = "USD"
    estimate: Usage | None = None
    amount: int = 0
    price: Price | None = None
    metadata: str | None = None
    at: int = 0
    unsaid: bool = False
    adopted: bool = False
    placed: bool = False
    gone: bool = False
    asker: str = ""

    @property
    def keys(self) -> list[str]:
        """The keys that it counts in, each once."""
        return sorted({budget.key for budget in self.budgets})

    @property
    def asked(self) -> tuple[object, ...]:
        """What two requests that ask the same have in common (R9)."""
        budgets = {(budget.key, budget.period, budget.zone) for budget in self.budgets}
        return frozenset(budgets), self.model, self.currency, self.amount

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Charge) and self.asked == other.asked

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Resolution:
    """How a charge is resolved.

    Attributes:
        charge: what was held.
        verb: how.
        bill: what is known of the cost.
        price: what the served model costs, where that is another than the one asked for.
    """

    charge: Charge
    verb: Verb
    bill: Bill | None = None
    price: Price | None = None


def withdrawal(request_id: str, asker: str) -> Resolution:
    """The undoing of a hold whose answer its asker has not heard: for that one alone, whoever else was given it."""
    return Resolution(Charge(request_id, asker), "withdraw")
