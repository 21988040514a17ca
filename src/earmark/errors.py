"""Every exception that earmark raises for a reason of its own.

    EarmarkError
    ├── Refused                 .retry_after  .retryable
    │   └── RateLimited         .denials
    ├── BackendUnavailable
    └── RequestIdConflict       .request_id

A bad value (a negative amount, an empty key, two limits alike) is a plain ValueError, raised before any
state changes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from earmark.answers import Denial


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


class BackendUnavailable(EarmarkError):
    """The store could not be reached, and the limiter was told not to decide without it."""


class RequestIdConflict(EarmarkError):
    """A request id that is still open was used again with other scopes or asks (R9).

    Attributes:
        request_id: the id.
    """

    def __init__(self, request_id: str) -> None:
        super().__init__(request_id)
        self.request_id = request_id

    def __str__(self) -> str:
        return (
            f"request_id {self.request_id!r} belongs to an open reservation with other scopes or asks: "
            "resolve that one first, or choose another id"
        )
