"""What is promised of a server, through a Sentinel: the contract of all backends, and random histories."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any, Final

import pytest
from hypothesis import Phase, given, settings

from earmark import RedisBackend
from earmark.testing import CONTRACT, check_backend
from earmark.testing.histories.drawing import histories
from earmark.testing.histories.steps import History, Replay, Step
from tests.reached import Reached
from tests.redis.test_differential import ENOUGH, STEPS
from tests.scale import PROFILE, examples
from tests.servers import Sentinel, sentinel
from tests.sites import master_of
from tests.stores import Store
from tests.twins import Twins

HISTORIES: Final = 100
FAILOVERS: Final = examples(2)

# One case is as another there: it is the way to the server that is new.
CASES: Final = CONTRACT if PROFILE == "long" else CONTRACT[::3]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """redis-py runs on asyncio alone."""
    return "asyncio"


@pytest.fixture(scope="module")
def group() -> Iterator[Sentinel]:
    """A pair that is well whenever a test begins, whoever of the two is the master."""
    with sentinel() as group:
        yield group


@pytest.mark.anyio
async def test_the_contract_holds_through_a_sentinel(group: Sentinel) -> None:
    """B53, R1–R19: every third case, in a long run all."""
    numbers = itertools.count()
    async with master_of(group.port, group.name) as client, AsyncExitStack() as stack:

        def make(**options: Any) -> RedisBackend:
            namespace = f"n{next(numbers)}"
            backend = RedisBackend(client, namespace=namespace, timeout=30, **options)
            stack.push_async_callback(backend.aclose)
            return backend

        await check_backend(make, CASES)
    with group.master.client() as look:
        assert look.dbsize()
        look.flushall()


class OverFailover(Twins):
    """One history, through memory and through a Sentinel, whose master is killed in its midst.

    All that was written until then is replicated: nothing may be lost.
    """

    group: Sentinel
    left = STEPS // 2

    async def step(self, step: Step) -> None:
        self.left -= 1
        if not self.left:
            self.group.replicate()
            self.group.fail_over()
            self.marks.add("failover")
        if self.left <= 0 and isinstance(step, Replay):
            # A copy goes as one that was sent before, which is not sent once more where its connection breaks: that the
            # old master's has is for another message to find.
            await self.look()
        await super().step(step)


def test_random_histories_through_a_sentinel(group: Sentinel) -> None:
    """R1–R12, R14, R17, B53: what its master decides is what memory decides."""
    wanted = examples(HISTORIES)
    reached = Reached("memory against a Sentinel's master")

    with asyncio.Runner() as runner:

        @settings(max_examples=wanted + wanted // 8 + 10)
        @given(histories(STEPS, replays=True))
        def play(history: History) -> None:
            twins = runner.run(_compare(history, group, Twins))
            if len(history.steps) == STEPS:
                reached.history(twins.marks)

        play()
    if wanted >= ENOUGH:
        assert reached.histories >= wanted
        reached.require(0.05, ("refusal", "rollover between hold and settle", "reused id"))


def test_a_failover_that_loses_nothing_is_not_seen(group: Sentinel) -> None:
    """R1–R12, R14, R17, B53: in the midst of random histories; none is made shorter, since each takes its time."""
    reached = Reached("memory against a Sentinel's master, over a failover")

    with asyncio.Runner() as runner:

        @settings(max_examples=FAILOVERS, phases=(Phase.generate,))
        @given(histories(STEPS, replays=True).filter(lambda history: len(history.steps) == STEPS))
        def play(history: History) -> None:
            try:
                reached.history(runner.run(_compare(history, group, OverFailover)).marks)
            finally:
                group.rejoin()

        play()
    reached.require(1.0, ("failover",))


async def _compare(history: History, group: Sentinel, kind: type[Twins]) -> Twins:
    """Play one history on a master that has nothing in it, and leave nothing there."""
    async with master_of(group.port, group.name) as client:
        with group.master.client() as look:
            twins = kind(history.offers, Store(client, look).recording)
        if isinstance(twins, OverFailover):
            twins.group = group
        try:
            await twins.run(history.steps)
        finally:
            await twins.redis.limiter.aclose()
            with group.master.client() as look:
                immortal = Store(client, look).clear()
    assert immortal == []
    return twins
