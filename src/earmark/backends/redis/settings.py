"""What a backend is made with, checked."""

from __future__ import annotations

from typing import Literal, TypedDict

from earmark.clock import Clock
from earmark.limits import HOUR

OnOutage = Literal["local", "open", "closed"]


class Settings(TypedDict, total=False):
    """The arguments of `RedisBackend` that stand beside its client."""

    namespace: str
    clock: Clock | None
    lease: float
    timeout: float
    on_outage: OnOutage
    local_share: float | Literal["auto"]
    outbox: int
    horizon: float


def seconds(name: str, value: object) -> float:
    """A time above 0 and at most an hour.

    Raises:
        ValueError: it is no such number.
    """
    if type(value) in {int, float} and isinstance(value, int | float) and 0 < value <= HOUR:
        return float(value)
    msg = f"{name} must be a number of seconds above 0 and at most an hour, not {value!r}"
    raise ValueError(msg)


def share(value: object) -> float | Literal["auto"]:
    """A part of every amount, above 0 and at most 1, or `auto`.

    Raises:
        ValueError: it is no such number.
    """
    if value == "auto":
        return "auto"
    if type(value) in {int, float} and isinstance(value, int | float) and 0 < value <= 1:
        return float(value)
    msg = f"local_share must be a number above 0 and at most 1, or 'auto', not {value!r}"
    raise ValueError(msg)


def count(name: str, value: object) -> int:
    """An integer of at least 1.

    Raises:
        ValueError: it is no such number.
    """
    if type(value) is int and value >= 1:
        return value
    msg = f"{name} must be an integer of at least 1, not {value!r}"
    raise ValueError(msg)
