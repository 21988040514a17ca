"""Holds a backend to the contract, without pytest and without hypothesis."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import anyio

from earmark.testing.contract import CONTRACT, Case
from earmark.testing.table import BackendFactory

DEADLINE: Final = 60.0
"""Seconds of the wall clock after which a case counts as hung: each takes milliseconds."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A case that did not come out as it must.

    Attributes:
        case: the case; `case.rules` are the numbers of what it proves.
        error: what went wrong: an AssertionError with what was got and what was expected, or what the backend raised.
    """

    case: Case
    error: Exception

    def __str__(self) -> str:
        numbers = ", ".join(self.case.rules)
        what = str(self.error)
        if not isinstance(self.error, AssertionError):
            what = f"{type(self.error).__name__}: {what}"
        notes = [note for note in getattr(self.error, "__notes__", ()) if note.startswith("in row")]
        lines = [f"{self.case}", f"{numbers}: {self.case.says}", what, *notes]
        return "\n    ".join(lines)


class ContractBroken(AssertionError):
    """A backend does not do what every backend does.

    Attributes:
        failures: every case that failed, in the order of the contract.
    """

    def __init__(self, failures: Iterable[Failure], cases: int) -> None:
        self.failures = tuple(failures)
        super().__init__(
            f"{len(self.failures)} of {cases} cases fail\n" + "\n".join(map(str, self.failures))
        )

    @property
    def rules(self) -> frozenset[str]:
        """The numbers of all that is broken: rules (R), behaviours (B) and cases (C)."""
        return frozenset(rule for failure in self.failures for rule in failure.case.rules)


async def check_backend(make: BackendFactory, cases: Iterable[Case] = CONTRACT) -> None:
    """Play every case of the contract on backends of their own, on asyncio or trio.

    Args:
        make: called as `make(clock=…, lease=…)` for every table that is played; it returns a backend in which nothing
            is kept, which decides by this clock and holds slots for `lease` seconds by default.
        cases: which cases are played, by default all of the contract.

    Raises:
        ContractBroken: some fail; its text names for each the rules, what was got, and what was expected.
    """
    played = tuple(cases)
    failures: list[Failure] = []
    for case in played:
        error = await _error_of(case, make)
        if error is not None:
            failures.append(Failure(case, error))
    if failures:
        raise ContractBroken(failures, len(played))


async def _error_of(case: Case, make: BackendFactory) -> Exception | None:
    try:
        with anyio.fail_after(DEADLINE):
            await case.check(make)
    except Exception as error:  # noqa: BLE001 - whatever a backend raises, the other cases are played
        return error.with_traceback(None)
    return None
