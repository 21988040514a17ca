"""Money as whole nano-units: exact, small enough for a database's integers, and never a float.

One currency's unit has 10**9 nano-units. A limit is stated in whole micro-units, so that nobody's typing error rounds
to "no limit"; a cost may have any fraction, and is rounded up to the nano-unit, so that nothing used is free (B59).
"""

from __future__ import annotations

from decimal import Context, Decimal
from fractions import Fraction
from math import ceil
from typing import Final

NANO: Final = 10**9
"""Nano-units in one unit of a currency."""

MAX_NANO: Final = 2**63 - 1
"""The most that a ledger counts: what a database's integer holds, about 9.2 thousand million units."""

_MICRO: Final = 1_000  # nano-units
_MOST_DIGITS: Final = 1_000  # before the point, and behind it


EXACT: Final = Context(prec=2 * _MOST_DIGITS)
"""What is reckoned in Decimals is reckoned in this: the caller's context may round."""


def nano_of(name: str, amount: object) -> int:
    """Return an amount of money in nano-units, rounded up.

    Raises:
        ValueError: it is no Decimal (or int), not finite, negative, or above 2**63 − 1 nano-units.
    """
    nano = ceil(fraction_of(name, amount) * NANO)
    if nano > MAX_NANO:
        msg = (
            f"{name} must be at most {MAX_NANO / NANO:.4g}, which a ledger can count, not {amount}"
        )
        raise ValueError(msg)
    return nano


def limit_of(name: str, amount: object) -> int:
    """Return a limit in nano-units.

    Raises:
        ValueError: as `nano_of`, or it is finer than a micro-unit.
    """
    nano = nano_of(name, amount)
    if nano % _MICRO or fraction_of(name, amount) * NANO != nano:
        msg = f"{name} must be in whole micro-units (0.000001), not {amount}"
        raise ValueError(msg)
    return nano


def fraction_of(name: str, amount: object) -> Fraction:
    """Return an amount of money exactly.

    Raises:
        ValueError: it is no Decimal (or int), not finite, negative, or of more than a thousand digits.
    """
    if type(amount) is int:
        amount = Decimal(amount)
    if isinstance(amount, Decimal) and amount.is_finite() and amount >= 0:
        exponent = amount.as_tuple().exponent
        # A mere exponent must not become a long number.
        if (
            isinstance(exponent, int)
            and exponent >= -_MOST_DIGITS
            and amount.adjusted() <= _MOST_DIGITS
        ):
            return Fraction(amount)
    msg = f"{name} must be a Decimal, finite and not negative, not {amount!r}"
    raise ValueError(msg)


def decimal_of(nano: int) -> Decimal:
    """Return nano-units as a Decimal, without trailing zeros behind the point."""
    whole, rest = divmod(abs(nano), NANO)
    text = f"{whole}.{rest:09d}".rstrip("0").rstrip(".")
    return Decimal(f"-{text}" if nano < 0 else text)
