"""How the kit writes a value into a report: short, and with what sets it apart from its like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Final, cast

from earmark.limits import Limit, Scope
from earmark.usage import Usage

_WINDOWS: Final[Mapping[float, str]] = {1: "s", 60: "m", 3_600: "h", 86_400: "d"}
_METRICS: Final = {"requests": "r", "tokens": "t", "input_tokens": "it", "output_tokens": "ot"}
_LONGEST_KEY: Final = 40


def limit_name(limit: Limit) -> str:
    """The usual name of a limit ("tpm", "conc"), or its metric and window."""
    if limit.metric == "concurrency":
        return "conc"
    window = limit.window or 0
    if limit.metric in _METRICS and window in _WINDOWS:
        return f"{_METRICS[limit.metric]}p{_WINDOWS[window]}"
    return f"{limit.metric}/{window:g}"


def shown(value: object) -> str:
    """A value as a report has it: `key(tpm=100 sliding_window)` for a scope."""
    if isinstance(value, Scope):
        limits = [_limit(limit) for limit in value.limits]
        if not value.enforce:
            limits.append("enforce=False")
        return f"{_key(value.key)}({', '.join(limits)})"
    if isinstance(value, Limit):
        return _limit(value)
    if isinstance(value, Usage):
        known = [(one.name, getattr(value, one.name)) for one in fields(value)]
        named = ", ".join(f"{name}={amount}" for name, amount in known if amount is not None)
        return f"Usage({named})"
    if isinstance(value, tuple | list):
        return ", ".join(map(shown, cast("Sequence[object]", value)))
    if isinstance(value, Mapping):
        named_ones = cast("Mapping[str, object]", value)
        return ", ".join(f"{name}={shown(one)}" for name, one in named_ones.items())
    return repr(value)


def _limit(limit: Limit) -> str:
    kind = "" if limit.algorithm == "fixed_window" else f" {limit.algorithm}"
    burst = "" if limit.burst is None else f" burst {limit.burst}"
    return f"{limit_name(limit)}={limit.amount}{kind}{burst}"


def _key(key: str) -> str:
    text = key if key.isprintable() and key.isascii() else ascii(key)
    return text if len(text) <= _LONGEST_KEY else f"{text[: _LONGEST_KEY - 2]}…{text[-1]}"
