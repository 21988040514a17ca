"""What an amount is: an integer from 0 to 2**53 − 1 (R12).

The bound is that of exact integers in a double, which is what Lua counts in: memory and Redis must decide
alike, bit for bit. A bool, a float or a NaN is no amount, however whole it looks.
"""

from __future__ import annotations

from typing import Final

MAX_AMOUNT: Final = 2**53 - 1


def check_amount(name: str, value: object) -> int:
    """Return `value` if it is an amount; raise ValueError, which says what was given, if it is not."""
    if type(value) is int and 0 <= value <= MAX_AMOUNT:
        return value
    msg = f"{name} must be an integer from 0 to 2**53 - 1, not {value!r}"
    raise ValueError(msg)
