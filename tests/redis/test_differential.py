"""R1–R12, R14, R17, B50: random histories of all messages, through memory and through Redis, step by step.

A failure prints the shrunk history as a program: paste it into PROGRAMS, where it stays. The histories are
spread over PARTS tests so that they run side by side.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earmark.testing.histories.drawing import histories
from earmark.testing.histories.steps import (
    Add,
    Again,
    Finish,
    History,
    Offer,
    PreCommit,
    Replay,
    Reset,
    Settle,
    Step,
    Wait,
)
from earmark.testing.histories.values import MOST, SECOND, Line
from tests.reached import Reached
from tests.scale import examples
from tests.servers import RedisServer
from tests.stores import Store, fake, real
from tests.twins import Twins

PARTS: Final = 10
# Of fewer histories a share says nothing.
ENOUGH: Final = 100

HISTORIES: Final = 5_000
HISTORIES_OF_TWO_LIVES: Final = 200
HISTORIES_ON_FAKEREDIS: Final = 150  # each takes it four times as long
HISTORIES_OF_RESETS: Final = 200
STEPS: Final = 30

MUST_MEET: Final = (
    "refusal",
    "rollover between hold and settle",
    "lapsed lease",
    "reused id",
    "changed limit",
    "post-stream",
)
REPLAYS: Final = ("replay of reserve", "replay of resolve", "replay of add", "replay of reset")


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """One loop for all histories of a test."""
    with asyncio.Runner() as runner:
        yield runner


def compare(history: History, store: Store, runner: asyncio.Runner, lives: int = 1) -> Twins:
    """Play one history on a store that has nothing in it, and leave nothing there."""

    async def play() -> Twins:
        twins = Twins(history.offers, store.recording)
        try:
            await twins.run(history.steps, lives)
        finally:
            await twins.redis.limiter.aclose()
        return twins

    try:
        twins = runner.run(play())
    finally:
        immortal = store.clear()
    assert immortal == []
    return twins


def compare_many(
    name: str, wanted: int, store: Store, runner: asyncio.Runner, lives: int = 1
) -> None:
    """Play so many histories on a store."""
    reached = Reached(name)

    # Some are short, so that failures shrink to short ones: they are played, and do not count.
    @settings(max_examples=wanted + wanted // 8 + 10)
    @given(histories(STEPS, replays=True))
    def play(history: History) -> None:
        twins = compare(history, store, runner, lives)
        reached.count("steps", len(history.steps) * lives)
        if len(history.steps) == STEPS:
            reached.history(twins.marks)

    play()
    assert reached.histories
    if wanted >= ENOUGH:
        assert reached.histories >= wanted
        reached.require(0.05, MUST_MEET)
        reached.require(0.01, REPLAYS)


@pytest.mark.parametrize("part", range(PARTS))
def test_random_histories(part: int, shared_redis: RedisServer, runner: asyncio.Runner) -> None:
    """R1–R12, R14, R17, B50: a real server decides what memory decides, bit for bit."""
    wanted = max(examples(HISTORIES) // PARTS, 1)
    compare_many("memory against Redis", wanted, real(shared_redis), runner)


def test_random_histories_of_two_lives(shared_redis: RedisServer, runner: asyncio.Runner) -> None:
    """R14: when everything is over, the same ids and keys find a server that has forgotten them."""
    wanted = examples(HISTORIES_OF_TWO_LIVES)
    compare_many("memory against Redis, twice", wanted, real(shared_redis), runner, lives=2)


def test_random_histories_on_fakeredis(runner: asyncio.Runner) -> None:
    """B50: what users put in the server's place in their tests decides the same."""
    wanted = examples(HISTORIES_ON_FAKEREDIS)
    compare_many("memory against fakeredis", wanted, fake(), runner)


# What stands between a reset and what it forgave: as long as its mark would live if it lived too short.
_LONG: Final[tuple[Step, ...]] = (
    *(Reset((0, 1, 2)), Reset((0,)), Reset((1,))),
    *(Wait(3_595 * SECOND), Wait(1_800 * SECOND), Wait(10 * SECOND)),
    *(Finish("renew", hold) for hold in (0, 0, 1, 2)),
    *(PreCommit((1, 0), 5), PreCommit((0,), 3, name=1), Finish("cancel", 1), Settle(2, 1)),
)
_resets: Final = st.lists(st.sampled_from(_LONG), min_size=STEPS // 2, max_size=STEPS // 2)


def _mixed(history: History, more: list[Step]) -> History:
    """A history with a further step after each of its steps, as far as they go."""
    steps = list(history.steps)
    for at, step in enumerate(more):
        steps.insert(2 * at + 1, step)
    return History(history.offers, tuple(steps))


def test_random_histories_of_resets(shared_redis: RedisServer, runner: asyncio.Runner) -> None:
    """R6, R12, R17: hours between resets and what is given back, of holds that were renewed and of others."""
    wanted = examples(HISTORIES_OF_RESETS)
    drawn = st.builds(_mixed, histories(STEPS), _resets)
    reached = Reached("memory against Redis, resets")
    store = real(shared_redis)

    @settings(max_examples=wanted)
    @given(drawn)
    def play(history: History) -> None:
        reached.history(compare(history, store, runner).marks)

    play()
    if wanted >= ENOUGH:
        reached.require(0.05, ("refusal", "renew", "rollover between hold and settle", "cancel"))


def _offers(algorithm: str) -> tuple[Offer, ...]:
    """One scope: a limit of half a day, and one of a minute, of tokens."""
    day = Line("tokens", 1_000, 43_200 * SECOND, algorithm)
    return (Offer("a", also=(day, Line("tokens", 1_000, 60 * SECOND, algorithm))),)


_HOUR: Final = Wait(3_595 * SECOND)
_RENEWED: Final[tuple[Step, ...]] = (Wait(1_790 * SECOND), Finish("renew", 0)) * 5

# By what went wrong where a mark ended an hour after its reset, and its generations began anew.
RESETS: Final[dict[str, tuple[Step, ...]]] = {
    "a hold from after a reset is settled when the mark is over": (
        *(PreCommit(tokens=9), Settle(used=9), Reset(), _HOUR),
        *(PreCommit(tokens=500), Wait(10 * SECOND), Settle(used=10)),
    ),
    "two resets more than an hour apart, and a hold from between": (
        *(PreCommit(tokens=9), Settle(used=9), Reset(), _HOUR, PreCommit(tokens=500)),
        *(Wait(10 * SECOND), PreCommit(tokens=70), Settle(used=70), Reset()),
        *(PreCommit(tokens=400), Settle(used=400), Finish("cancel", 2)),
    ),
    "two resets at one instant, and holds from before, between and after": (
        *(PreCommit(tokens=100), Reset(), PreCommit(tokens=200), Reset(), PreCommit(tokens=300)),
        *(Finish("cancel", 2), Finish("cancel", 1), Finish("cancel", 0)),
    ),
    "a hold from before a reset is renewed for longer than an hour": (
        *(PreCommit(tokens=500), Wait(SECOND), Reset(), *_RENEWED),
        *(PreCommit(tokens=400), Settle(used=400), Finish("cancel", 1)),
    ),
    "a hold that was renewed for hours is from between two resets": (
        *(PreCommit(tokens=9), Reset(), PreCommit(tokens=500), *_RENEWED, Reset()),
        *(PreCommit(tokens=400), Settle(used=400), Finish("cancel", 1)),
    ),
    "a hold is renewed for hours, and nothing was reset since": (
        *(PreCommit(tokens=9), Reset(), PreCommit(tokens=500), *_RENEWED),
        *(PreCommit(tokens=400), Settle(used=400), Finish("cancel", 1)),
    ),
    "a reset when nothing counts any more": (
        *(PreCommit(tokens=500), Wait(130 * SECOND), Reset()),
        *(PreCommit(tokens=400), Settle(used=400), Finish("cancel", 1)),
    ),
}

PROGRAMS: Final[dict[str, tuple[tuple[Offer, ...], tuple[Step, ...]]]] = {
    "a reset of what would not be over in a thousand years": (
        (Offer("a", (("tpm", 12),), "token_bucket", enforce=False),),
        (PreCommit(tokens=MOST), Reset(), Add(used=3), Settle(used=6)),
    ),
    "a late copy finds that another answers to its name": (
        (Offer("a", (("rph", 5),)),),
        (PreCommit(), Replay(), Settle(), Again(), Replay(2)),
    ),
    **{
        f"{name}, {algorithm}": (_offers(algorithm), steps)
        for name, steps in RESETS.items()
        for algorithm in ("fixed_window", "sliding_window", "token_bucket")
    },
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, shared_redis: RedisServer, runner: asyncio.Runner) -> None:
    """R1–R12, R14, R17: what once went wrong, step by step."""
    for store in (real(shared_redis), fake()):
        compare(History(*PROGRAMS[name]), store, runner)
