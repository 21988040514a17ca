"""R1–R12, R14, R17: random histories of all verbs, through the limiter and through the plain model, step by step.

A failure prints the shrunk history as a program: paste it into PROGRAMS, where it stays. The histories are
spread over PARTS tests so that they run side by side.
"""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given, settings

from earmark.testing.histories.drawing import histories
from earmark.testing.histories.steps import (
    Add,
    Amend,
    Finish,
    History,
    Offer,
    PreCommit,
    Settle,
    Wait,
    WaitFor,
)
from earmark.testing.histories.values import SECOND, Line
from tests.driver import Driver
from tests.reached import Reached
from tests.scale import examples

PARTS: Final = 10
HISTORIES: Final = 5_000
STEPS: Final = 30

MUST_MEET: Final = (
    "refusal",
    "rollover between hold and settle",
    "lapsed lease",
    "reused id",
    "changed limit",
)


@pytest.mark.parametrize("part", range(PARTS))
def test_random_histories(part: int) -> None:
    """R1–R12, R14, R17: the limiter does what the plain model does, step by step, whatever happens."""
    reached = Reached("machine")
    wanted = max(examples(HISTORIES) // PARTS, 1)

    # Some are short, so that failures shrink to short ones: they are played, and do not count.
    @settings(max_examples=wanted + wanted // 8 + 10)
    @given(histories(STEPS))
    def play(history: History) -> None:
        driver = Driver(history.offers)
        driver.run(history.steps)
        reached.count("steps", len(history.steps))
        if len(history.steps) == STEPS:
            reached.history(driver.marks)

    play()
    assert reached.histories >= wanted
    reached.require(0.05, MUST_MEET)


_BUCKET = Offer("a", (("tpm", 10),), "token_bucket")
_BURST = Offer("a", also=(Line("tokens", 1, SECOND, "token_bucket", 100),))
_REQUESTS = Offer("a", also=(Line("requests", 10, SECOND, "token_bucket"),))
_NONE, _SECOND = Offer("none"), Offer("b", (("rps", 10),))

PROGRAMS: Final = {
    "an addition that counts nothing keeps no id": (
        (_NONE, _SECOND),
        (Add(1, 1, name=0), Add(1, 1, name=0, bare=True), Add(0, 1, name=0)),
    ),
    "a lower amount does not outlive the end of a bucket": (
        (_BUCKET,),
        (Add(0, 2), Amend(0, 0, 1), WaitFor("reset", off=-1), Wait(1), PreCommit(tokens=1)),
    ),
    "a refusal under a lower amount names the end of a bucket": (
        (_BUCKET,),
        (PreCommit(tokens=9), Amend(0, 0, 2), PreCommit(tokens=1), WaitFor("retry"), PreCommit()),
    ),
    "a bucket takes a refund after its table was made anew": (
        (_REQUESTS,),
        (PreCommit(), WaitFor("window", more=1), PreCommit(), Finish("cancel", 1)),
    ),
    "a bucket that is refunded is forgotten in its own time": (
        (_BURST,),
        (PreCommit(tokens=90), Finish("cancel"), Wait(2 * SECOND)),
    ),
    "a part in a mapping does not exceed its whole": (
        (Offer("a", (("itpm", 10),)),),
        (PreCommit(), Settle(used=(("uncached_input_tokens", 7), ("tokens", 4)))),
    ),
    "an open id asks for other scopes, of which none is limited": (
        (_NONE, _SECOND),
        (PreCommit((0, 1), name=0), PreCommit((0,), name=0), Settle(0, 1)),
    ),
    "an id is free once its reservation is forgotten": (
        (_NONE, _SECOND),
        (PreCommit((1,), name=0), WaitFor("keep"), PreCommit((0,), name=0)),
    ),
    "the library's own id is free once its reservation is forgotten": (
        (_NONE, _SECOND),
        (PreCommit((1,)), WaitFor("keep"), PreCommit((0,), name=-1), PreCommit((1,), name=-1)),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    """R1–R12, R14, R17: what once went wrong, step by step."""
    offers, steps = PROGRAMS[name]
    Driver(offers).run(steps)
