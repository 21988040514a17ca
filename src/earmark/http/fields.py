"""The rate-limit headers, in three families: OpenAI's, Anthropic's and the IETF's."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, Literal

from earmark.answers import LimitStatus
from earmark.limits import REQUESTS, Limit, spelled

Fields = Literal["openai", "anthropic", "ietf"]
"""Whose rate-limit headers."""

_MAX_SF_INTEGER: Final = 999_999_999_999_999
"""The largest integer of a structured field (RFC 9651, 3.3.1)."""


def whole(number: float, *, least: int = 0) -> int:
    """Rounded up; what stands for whole microseconds is not rounded up for the error of a float."""
    return max(-(-round(number * 1_000_000) // 1_000_000), least)


def rate_limit_fields(
    binding: Mapping[str, LimitStatus], fields: Iterable[Fields], now: float | None = None
) -> dict[str, str]:
    """The headers of these families for the binding limits, by metric.

    Raises:
        ValueError: another family.
    """
    headers: dict[str, str] = {}
    if not binding:
        return headers
    for family in fields:
        if family == "openai":
            _write_openai(headers, binding)
        elif family == "ietf":
            _write_ietf(headers, binding)
        elif family == "anthropic":
            _write_anthropic(headers, binding, time.time() if now is None else now)
        else:
            msg = f"fields must be of openai, anthropic or ietf, not {family!r}"
            raise ValueError(msg)
    return headers


_OPENAI: Final = tuple(
    (metric, *(f"x-ratelimit-{word}-{metric}" for word in ("limit", "remaining", "reset")))
    for metric in (REQUESTS, "tokens")
)


def _write_openai(headers: dict[str, str], binding: Mapping[str, LimitStatus]) -> None:
    said: tuple[float | None, str] = (None, "")  # mostly all windows end at the same moment
    for metric, limit, remaining, reset in _OPENAI:
        one = binding.get(metric)
        if one is not None:
            headers[limit] = str(one.limit.capacity)
            headers[remaining] = str(one.remaining)
            if one.reset_after is not None:
                if one.reset_after != said[0]:
                    said = (one.reset_after, go_duration(one.reset_after))
                headers[reset] = said[1]


def go_duration(seconds: float) -> str:
    """A duration as Go prints it and OpenAI sends it, in milliseconds, rounded up: "0s", "20ms", "1.5s", "6m0s"."""
    milliseconds = -(-round(seconds * 1_000_000) // 1_000)
    whole_seconds, rest = divmod(milliseconds, 1_000)
    if rest and not whole_seconds:
        return f"{rest}ms"
    minutes, left = divmod(whole_seconds, 60)
    text = f"{left}.{rest:03}".rstrip("0") + "s" if rest else f"{left}s"
    if not minutes:
        return text
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{text}" if hours else f"{minutes}m{text}"


_ANTHROPIC: Final = tuple(
    (metric, *(f"anthropic-ratelimit-{name}-{word}" for word in ("limit", "remaining", "reset")))
    for metric, name in (
        (REQUESTS, "requests"),
        ("tokens", "tokens"),
        ("input_tokens", "input-tokens"),
        ("output_tokens", "output-tokens"),
    )
)


def _write_anthropic(
    headers: dict[str, str], binding: Mapping[str, LimitStatus], now: float
) -> None:
    for metric, limit, remaining, reset in _ANTHROPIC:
        one = binding.get(metric)
        if one is not None:
            headers[limit] = str(one.limit.capacity)
            headers[remaining] = str(one.remaining)
            if one.reset_after is not None:
                headers[reset] = _rfc_3339(min(whole(now + one.reset_after), _LATEST))


_LATEST: Final = 253_402_300_799
"""The last second that RFC 3339 has a name for; a bucket that is deep in debt may be full later."""


@lru_cache(maxsize=256)  # windows end at the same moment for everybody
def _rfc_3339(second: int) -> str:
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _write_ietf(headers: dict[str, str], binding: Mapping[str, LimitStatus]) -> None:
    policies: list[str] = []
    states: list[str] = []
    for one in binding.values():
        limit = one.limit
        name, policy = _policy(limit.metric, limit.window, limit.capacity)
        policies.append(policy)
        state = f"{name};r={min(one.remaining, _MAX_SF_INTEGER)}"
        if one.reset_after is not None:
            state += f";t={min(whole(one.reset_after), _MAX_SF_INTEGER)}"
        states.append(state)
    headers["ratelimit-policy"] = ", ".join(policies)
    headers["ratelimit"] = ", ".join(states)


@lru_cache(maxsize=1_024)  # by its parts: a limit's own hash takes longer than all else here
def _policy(metric: str, window: float | None, capacity: int) -> tuple[str, str]:
    """A limit's name between quotes, and the item that describes it."""
    name = f'"{_escaped(_name(metric, window))}"'
    unit = "" if metric == REQUESTS else f';qu="{_escaped(metric)}"'
    seconds = min(math.ceil(window or 0), _MAX_SF_INTEGER)
    return name, f"{name};q={min(capacity, _MAX_SF_INTEGER)}{unit};w={seconds}"


def policy_name(limit: Limit) -> str:
    """What the IETF fields and problems call a limit: its metric and its window, as in `requests-60s`."""
    return _name(limit.metric, limit.window)


def _name(metric: str, window: float | None) -> str:
    return f"{_printable(metric)}-{spelled(window or 0)}s"


def _printable(text: str) -> str:
    """What a structured field's string can hold of a text: printable ASCII."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if " " <= char <= "~" else "?" for char in text)


def _escaped(text: str) -> str:
    """A text as it stands between the quotes."""
    return _printable(text).replace("\\", "\\\\").replace('"', '\\"')
