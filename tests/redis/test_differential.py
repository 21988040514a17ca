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

from tests.model_values import MOST
from tests.reached import Reached
from tests.scale import examples
from tests.servers import RedisServer
from tests.stores import Store, fake, real
from tests.strategies import (
    Add,
    Again,
    History,
    Offer,
    PreCommit,
    Replay,
    Reset,
    Settle,
    Step,
    histories,
)
from tests.twins import Twins

PARTS: Final = 10
HISTORIES: Final = 5_000
HISTORIES_OF_TWO_LIVES: Final = 400
HISTORIES_ON_FAKEREDIS: Final = 200  # each takes it four times as long
STEPS: Final = 34

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
    assert reached.histories >= wanted
    reached.require(0.05, MUST_MEET)
    if wanted >= 100:
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


PROGRAMS: Final[dict[str, tuple[tuple[Offer, ...], tuple[Step, ...]]]] = {
    "a reset of what would not be over in a thousand years": (
        (Offer("a", (("tpm", 12),), "token_bucket", enforce=False),),
        (PreCommit(tokens=MOST), Reset(), Add(used=3), Settle(used=6)),
    ),
    "a late copy finds that another answers to its name": (
        (Offer("a", (("rph", 5),)),),
        (PreCommit(), Replay(), Settle(), Again(), Replay(2)),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, shared_redis: RedisServer, runner: asyncio.Runner) -> None:
    """R1–R12, R14, R17: what once went wrong, step by step."""
    for store in (real(shared_redis), fake()):
        compare(History(*PROGRAMS[name]), store, runner)
