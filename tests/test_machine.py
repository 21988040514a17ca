"""R1–R12, R14, R17: random histories of all verbs, through the limiter and through the plain model, step by step.

A failure prints the shrunk history as a program: paste it into PROGRAMS, where it stays as a row. The histories are
spread over PARTS tests so that they run side by side; each part draws from a seed of its own.
"""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import HealthCheck, given, seed, settings

from tests.driver import Driver
from tests.reached import Reached
from tests.scale import examples
from tests.strategies import History, histories

PARTS: Final = 10
HISTORIES: Final = 5_200
STEPS: Final = 34

MUST_MEET: Final = (
    "refusal",
    "rollover between hold and settle",
    "lapsed lease",
    "reused id",
    "changed limit",
)

PROGRAMS: Final[tuple[tuple[str, History], ...]] = ()


@pytest.mark.parametrize("part", range(PARTS))
def test_random_histories(part: int) -> None:
    """R1–R12, R14, R17: the limiter does what the plain model does, step by step, whatever happens."""
    reached = Reached("machine")

    @seed(part)
    @settings(
        max_examples=examples(HISTORIES) // PARTS,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(histories(STEPS))
    def play(history: History) -> None:
        driver = Driver(history.offers)
        driver.run(history.steps)
        reached.history(driver.marks)
        reached.count("steps", len(history.steps))

    play()
    reached.require(0.05, MUST_MEET)
