"""The table that the demo prints: one row for each step, judged against what `peek` says right after it."""

from __future__ import annotations

from typing import Final

from earmark import Limit, Limiter, Scope, ScopeStatus

# The widths of the columns: the step, the answer, what is expected, what `peek` says.
_ROW: Final = "{:>2}  {:<38} {:<19} {:<25} {:<25} {}"


class Table:
    """Prints rows as they come, and remembers which did not hold.

    Args:
        limiter: the one that is asked what it has counted.
    """

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self.rows = 0
        self.failures: list[str] = []

    def heading(self, scope: Scope) -> None:
        """Begin a part of the table, which is about one scope."""
        limits = ", ".join(map(_limit, scope.limits))
        columns = ("", "step", "answer", "expected", "peek says", "")
        print("", f"{scope.key}: {limits}", _ROW.format(*columns).rstrip(), sep="\n")

    async def row(
        self,
        step: str,
        scope: Scope,
        answers: tuple[str, str] = ("", ""),
        **expected: int,
    ) -> None:
        """Print what a step did.

        Args:
            step: what was done.
            scope: the scope that it is about.
            answers: the answer that is expected, and the one that came.
            expected: what is used of each limited metric, by name, in the order of the limits; `slots` of a
                concurrency limit.
        """
        (status,) = await self._limiter.peek(scope)
        due, seen = _shown(expected), _shown(_used(status))
        wanted, came = answers
        held = due == seen and wanted == came
        self.rows += 1
        if not held:
            self.failures.append(step)
        said = came if wanted == came else f"{came} (not {wanted})"
        print(_ROW.format(self.rows, step, said, due, seen, "ok" if held else "FAILED"))

    def verdict(self) -> int:
        """Print how it went; returns the exit code."""
        print()
        if self.failures or not self.rows:
            print(f"FAILED: {len(self.failures)} of {self.rows} steps are not as expected:")
            print(*(f"  {step}" for step in self.failures), sep="\n")
            return 1
        print(f"ok: all {self.rows} steps are as expected.")
        return 0


def _used(status: ScopeStatus) -> dict[str, int]:
    """What is used of each limit."""
    return {_word(entry.limit): entry.used for entry in status.limits}


def _word(limit: Limit) -> str:
    """The table's word for what a limit counts."""
    return limit.metric if limit.window else "slots"


def _limit(limit: Limit) -> str:
    within = f" in {limit.window:g} s" if limit.window else ""
    return f"{limit.amount:,} {_word(limit)}{within}"


def _shown(used: dict[str, int]) -> str:
    return ", ".join(f"{metric} {amount:,}" for metric, amount in used.items())
