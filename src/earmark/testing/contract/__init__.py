"""The contract of a backend, as a table of cases: what every backend does, whatever it keeps its limits in.

Each case names the rules (R…), behaviours (B…) and cases (C…) that it proves, and plays a short history through a
limiter on a backend that is made for it. It needs an event loop, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from earmark.testing.contract import (
    apart,
    changing,
    faults,
    identity,
    lasting,
    leases,
    messages,
    numbers,
    post_stream,
    refusals,
    settlement,
    slots,
    times,
    two_phases,
    whole,
    windows,
)
from earmark.testing.contract.cases import Case

__all__ = ["CONTRACT", "Case", "chosen"]

CONTRACT: Final[tuple[Case, ...]] = (
    *windows.cases,
    *refusals.cases,
    *times.cases,
    *two_phases.cases,
    *settlement.cases,
    *post_stream.cases,
    *changing.cases,
    *identity.cases,
    *leases.cases,
    *lasting.cases,
    *messages.cases,
    *slots.cases,
    *faults.cases,
    *numbers.cases,
    *apart.cases,
    *whole.cases,
)


def chosen(cases: Iterable[Case] | None) -> tuple[Case, ...]:
    """The cases that are to be played, by default all of the contract.

    Raises:
        ValueError: there are none, and whatever is held to them would pass.
    """
    played = CONTRACT if cases is None else tuple(cases)
    if not played:
        msg = "there is no case to be played: choose some of earmark.testing.CONTRACT, by their names or rules"
        raise ValueError(msg)
    return played
