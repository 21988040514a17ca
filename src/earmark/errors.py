"""Every exception that earmark raises for a reason of its own.

    EarmarkError
    ├── Refused                 .retry_after  .retryable
    │   ├── RateLimited         .denials
    │   └── BudgetExceeded      .budget  .limit  .spent  .pending  .asked  .resets_at
    ├── BackendUnavailable
    ├── RequestIdConflict       .request_id
    └── UnknownPrice            .model

A bad value (a negative amount, an empty key, two limits alike) is a plain ValueError, raised before any
state changes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from datetime import datetime

    from earmark.answers import Denial
    from earmark.budgets import Budget


class EarmarkError(Exception):
    """The root of earmark's own errors."""


class Refused(EarmarkError):
    """A request may not run now."""

    @property
    @abstractmethod
    def retry_after(self) -> float | None:
        """Seconds after which asking again may help, or None where no time can be named."""

    @property
    @abstractmethod
    def retryable(self) -> bool:
        """False where asking again can never help."""


class RateLimited(Refused):
    """At least one limit refused; nothing was counted (R2).

    `denials` are in the order of the scopes and of their limits; `retry_after` is None where only
    concurrency refused, or where one of the limits never admits this ask (R3). They are computed
    when they are first looked at, since most refusals are only counted.
    """

    def __init__(self, denials: Iterable[Denial]) -> None:
        super().__init__()
        self._denials = denials

    @cached_property
    def denials(self) -> tuple[Denial, ...]:
        """Every limit that refused."""
        return tuple(self._denials)

    @property
    def retryable(self) -> bool:
        """False where one of the limits never admits this ask."""
        return all(denial.retryable for denial in self.denials)

    @property
    def retry_after(self) -> float | None:
        """Seconds: the largest over the denials, or None."""
        waits = [denial.retry_after for denial in self.denials if denial.retry_after is not None]
        return max(waits, default=None) if self.retryable else None

    def __reduce__(self) -> tuple[type[Self], tuple[tuple[Denial, ...]]]:
        return type(self), (self.denials,)

    def __str__(self) -> str:
        return "; ".join(map(str, self.denials))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"


class BudgetExceeded(Refused):
    """A budget refused; nothing was counted, also by no limit (R2).

    Where several did, it is the one that refuses the longest.

    Attributes:
        budget: the budget.
        spent: what is posted in its period.
        pending: what open requests hold in its period.
        asked: what this one wanted to hold.
        resets_at: when the next period begins, in UTC; None: never.
    """

    def __init__(
        self,
        budget: Budget,
        spent: Decimal,
        pending: Decimal,
        asked: Decimal,
        until: tuple[datetime, float] | None = None,
    ) -> None:
        super().__init__(budget, spent, pending, asked, until)
        self.budget = budget
        self.spent = spent
        self.pending = pending
        self.asked = asked
        self.resets_at = None if until is None else until[0]
        self._seconds = None if until is None else until[1]

    @property
    def limit(self) -> Decimal:
        """The budget's limit."""
        return self.budget.limit or Decimal(0)

    @property
    def retryable(self) -> bool:
        """False where the budget is 0 or below what is asked, or is spent for good."""
        fits = self.limit > 0 and self.asked <= self.limit
        return fits and (self.resets_at is not None or self.pending > 0)

    @property
    def retry_after(self) -> float | None:
        """Seconds until the next period begins; None where there is none, or where waiting cannot help."""
        return self._seconds if self.retryable else None

    def __str__(self) -> str:
        budget = self.budget
        until = "" if self.resets_at is None else f", until {self.resets_at.isoformat()}"
        return (
            f"{budget.key!r}: {self.limit} {budget.currency} {budget.period}, {self.spent} spent, "
            f"{self.pending} pending, {self.asked} asked{until}"
        )


class UnknownPrice(EarmarkError):
    """No price is known for a model, and no default was stated (C35).

    Attributes:
        model: the model.
    """

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.model = model

    def __str__(self) -> str:
        return f"the price of {self.model!r} is not known: name it in the price table, or state a default there"


class BackendUnavailable(EarmarkError):
    """The store could not be reached, and the limiter was told not to decide without it."""


class RequestIdConflict(EarmarkError):
    """A request id was used again while it is open with other scopes, asks or budgets (R9).

    Attributes:
        request_id: the id.
    """

    def __init__(self, request_id: str) -> None:
        super().__init__(request_id)
        self.request_id = request_id

    def __str__(self) -> str:
        return (
            f"request_id {self.request_id!r} belongs to an open reservation with other scopes, asks or budgets: "
            "resolve that one first, or choose another id"
        )
