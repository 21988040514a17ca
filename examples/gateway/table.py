"""The table that the demo prints: one row for each step, judged by what `peek` says right after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from earmark import Limit, Limiter, Scope
from earmark.ledger import Budget, Ledger

_ROW: Final = "{:>2}  {:<38} {:<19} {:<25} {:<25} {}"
_COLUMNS: Final = _ROW.format("", "step", "answer", "expected", "peek says", "").rstrip()


class Table:
    """Prints rows as they come, and remembers which of them did not hold.

    Args:
        limiter: whose counts are looked at.
        ledger: whose money is looked at.
    """

    def __init__(self, limiter: Limiter, ledger: Ledger | None = None) -> None:
        self._limiter = limiter
        self._ledger = ledger
        self._scopes: tuple[Scope, ...] = ()
        self._budget: Budget | None = None
        self._rows = 0
        self._failed: list[int] = []

    def about(self, scope: Scope, budget: Budget | None = None) -> None:
        """Begin a part of the table; the rows that follow look at this scope, and at what was spent of this budget."""
        self._scopes = (scope,)
        self._budget = budget
        limits = [_limit(limit) for limit in scope.limits]
        if budget is not None:
            limits.append(f"{budget.limit} {budget.currency} {budget.period}")
        print(f"\n{scope.key}: {', '.join(limits)}\n{_COLUMNS}")

    async def row(self, step: str, came: str, due: str, **expected: int) -> None:
        """Print what a step did.

        Args:
            step: what was done.
            came: what was answered.
            due: what should have been answered.
            expected: units that should be used, by the name of the metric (`slots` for concurrency), in the
                order of the scope's limits; then the millionths of a USD that should be spent.
        """
        used: dict[str, int] = {}
        for scope in await self._limiter.peek(*self._scopes):
            used |= {_name(status.limit): status.used for status in scope.limits}
        if self._budget is not None and self._ledger is not None:
            used["micro-USD"] = round(await self._ledger.spent(self._budget) * 1_000_000)
        holds = came == due and _shown(used) == _shown(expected)
        self._rows += 1
        if not holds:
            self._failed.append(self._rows)
        answer = came if came == due else f"{came}, not {due}"
        verdict = "ok" if holds else "FAILED"
        print(_ROW.format(self._rows, step, answer, _shown(expected), _shown(used), verdict))

    async def summary(self) -> None:
        """Print what was spent, by day, model and key, and whether the totals are what the log says."""
        if self._ledger is None:
            return
        print("\nspent, by day, model and key:")
        for line in await self._ledger.summary():
            names = f"{line.day}  {line.model}  {line.key}"
            tokens = f"{line.input_tokens} + {line.output_tokens} tokens"
            print(f"    {names}  {line.requests} requests  {tokens}  {line.cost:f} {line.currency}")
        drifts = await self._ledger.verify()
        print(f"    totals that are not what the log says: {len(drifts)}")
        if drifts:
            self._failed.append(self._rows)

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
