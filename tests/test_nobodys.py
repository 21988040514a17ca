"""R9, R16: callers who ask by one name at the same moment are all cancelled: nobody has it, and nothing is held."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Final

import pytest

from earmark import Limiter, Limits, MemoryBackend, Reservation, Scope
from earmark.testing import ManualClock
from tests.reached import Reached
from tests.rivals import KINDS, Goes, Kind, rivals
from tests.suspending import Suspending, quiesce

KEY: Final = Scope("key", Limits(rpm=60, tpm=1_000, concurrency=5))
OTHER: Final = Scope("other", Limits(rpm=60))

# A reserve suspends twice, and so does each withdrawal.
TURNS: Final = 6

reached = Reached("rivals in memory")


async def end(goes: tuple[Goes, ...]) -> None:
    """Have them ask and go, the second in another order; whoever was given it holds it, or nobody does."""
    memory = MemoryBackend(clock=ManualClock())
    limiter = Limiter(Suspending(memory))
    scopes = ((KEY, OTHER), (OTHER, KEY), (KEY, OTHER))
    asks = [
        partial(limiter.pre_commit, *scopes[number], tokens=30, request_id="q")
        for number in range(len(goes))
    ]
    got = await rivals(asks, goes)
    await quiesce()
    assert len(set(map(id, got))) <= 1
    await holds(Limiter(memory), got)
    reached.count(f"{len(got)} of {len(goes)} are given it")


async def holds(limiter: Limiter, got: list[Reservation]) -> None:
    """Everything, or nothing, and that can be given back."""

    async def used() -> list[int]:
        return [one.used for scope in await limiter.peek(KEY, OTHER) for one in scope.limits]

    assert await used() == ([1, 30, 1, 1] if got else [0, 0, 0, 0])
    if got:
        assert await got[0].cancel() is True
        assert await used() == [0, 0, 0, 0]


async def every(*kinds: Kind) -> None:
    """Each caller at every await of its own."""
    for turns in product(range(TURNS), repeat=len(kinds)):
        await end(tuple(zip(kinds, turns, strict=True)))


@pytest.mark.anyio
async def test_r9_a_name_that_all_who_asked_have_left() -> None:
    """R9, R16: two callers and three, by cancelled scopes, each at every await of its own."""
    await every("scope", "scope")
    await every("scope", "scope", "scope")


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_r9_a_name_that_all_who_asked_have_left_by_either_kind() -> None:
    """R9, R16: and by tasks that are cancelled, which asyncio alone has."""
    for kinds in product(KINDS, KINDS):
        await every(*kinds)
