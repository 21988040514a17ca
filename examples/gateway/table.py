"""The table that the demo prints: one row for each step, judged by what `peek` says right after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from earmark import Limit, Limiter, Scope

_ROW: Final = "{:>2}  {:<38} {:<19} {:<25} {:<25} {}"
_COLUMNS: Final = _ROW.format("", "step", "answer", "expected", "peek says", "").rstrip()


class Table:
    """Prints rows as they come, and remembers which of them did not hold.

    Args:
        limiter: whose counts are looked at.
    """

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._scopes: tuple[Scope, ...] = ()
        self._rows = 0
        self._failed: list[int] = []

    def about(self, scope: Scope) -> None:
        """Begin a part of the table; the rows that follow look at this scope."""
        self._scopes = (scope,)
        print(f"\n{scope.key}: {', '.join(map(_limit, scope.limits))}\n{_COLUMNS}")

    async def row(self, step: str, came: str, due: str, **expected: int) -> None:
        """Print what a step did.

        Args:
            step: what was done.
            came: what was answered.
            due: what should have been answered.
            expected: units that should be used, by the name of the metric (`slots` for concurrency), in the
                order of the scope's limits.
        """
        used: dict[str, int] = {}
        for scope in await self._limiter.peek(*self._scopes):
            used |= {_name(status.limit): status.used for status in scope.limits}
        holds = came == due and _shown(used) == _shown(expected)
        self._rows += 1
        if not holds:
            self._failed.append(self._rows)
        answer = came if came == due else f"{came}, not {due}"
        verdict = "ok" if holds else "FAILED"
        print(_ROW.format(self._rows, step, answer, _shown(expected), _shown(used), verdict))

    def verdict(self) -> int:
        """Print how it went; returns the exit code: 0 if there are rows and each of them holds."""
        if self._rows and not self._failed:
            print(f"\nok: all {self._rows} steps went as expected.")
            return 0
        numbers = ", ".join(map(str, self._failed)) or "none"
        print(f"\nFAILED: of {self._rows} steps these did not go as expected: {numbers}.")
        return 1


def _name(limit: Limit) -> str:
    return limit.metric if limit.window else "slots"


def _limit(limit: Limit) -> str:
    if limit.window is None:
        return f"{limit.amount:,} at a time"
    return f"{limit.amount:,} {limit.metric} in {limit.window:g} s"


def _shown(used: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {amount:,}" for name, amount in used.items())
