"""What keeps the number of time series bounded, whatever clients and configurations have in them."""

from __future__ import annotations

from typing import Final

KINDS: Final = frozenset(
    {
        "account",
        "api_key",
        "customer",
        "deployment",
        "global",
        "key",
        "model",
        "org",
        "organization",
        "project",
        "provider",
        "region",
        "rule",
        "service",
        "team",
        "tenant",
        "user",
    }
)
"""The kinds of scopes that are told apart by default."""

OTHER: Final = "other"
MOST_NAMES: Final = 32
"""How many metrics, and how many windows, are told apart."""


class Few:
    """Names as they are, as long as there are few of them: what comes later is "other"."""

    def __init__(self, most: int = MOST_NAMES) -> None:
        self._most = most
        self._known: set[str] = set()

    def __call__(self, name: str) -> str:
        """The name, or "other"."""
        if name not in self._known:
            if len(self._known) >= self._most:
                return OTHER
            self._known.add(name)
        return name
