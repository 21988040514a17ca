"""R1-R12, R14, R17: random histories through memory and through a cluster, whose scopes are on any of its slots.

All nodes have the injected clock, so that each judges at the instant at which memory judges. What is said otherwise is
the list of a refusal: it is that of the first slot that refused. The clock does not step back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Final

import pytest
from hypothesis import given, settings

from earmark import Usage
from earmark.backends.redis.keys import tag_of
from earmark.testing.histories import steps as do
from earmark.testing.histories.drawing import histories
from earmark.testing.histories.steps import History
from tests.cluster import store
from tests.reached import Reached
from tests.redis.test_differential import ENOUGH, STEPS
from tests.scale import examples
from tests.servers import RedisCluster
from tests.stores import Store
from tests.twins import Side, Twins

HISTORIES: Final = 360
PARTS: Final = 2
MANY: Final = 1_000


class OfFirstSlot(Side):
    """Memory, whose refusals list what the first slot lists that refuses."""

    async def ask(self, scopes: list[Any], name: str | None, step: do.PreCommit) -> object:
        answer: Any = await super().ask(scopes, name, step)
        if answer[0] != "refused":
            return answer
        denials = answer[1]
        refusing = {tag_of(denial.key) for denial in denials}
        slots = [tag_of(scope.key) for scope in scopes if scope.limits.all]
        first = min(refusing, key=slots.index)
        left = tuple(denial for denial in denials if tag_of(denial.key) == first)
        waits = [denial.retry_after for denial in left if denial.retry_after is not None]
        retryable = all(denial.retryable for denial in left)
        return ("refused", left, max(waits) if waits and retryable else None, retryable)


class OverSlots(Twins):
    """One history, through memory and through a cluster."""

    def begin(self) -> None:
        super().begin()
        self.memory = OfFirstSlot(self.memory_backend)

    def is_chosen(self, number: int) -> bool:
        """Whether a reservation answers to a name that its caller chose: on a cluster no other leads anywhere."""
        holds = self.memory.holds
        return bool(holds) and holds[number % len(holds)].request_id is not None

    async def do_precommit(self, step: do.PreCommit) -> None:
        if step.name is None or step.name >= 0 or self.is_chosen(step.name):
            await super().do_precommit(step)

    async def do_again(self, step: do.Again) -> None:
        if self.is_chosen(-1 - step.hold % max(len(self.memory.holds), 1)):
            await super().do_again(step)

    def do_wait(self, step: do.Wait) -> None:
        """Never backwards: what stands still until the clock has caught up does so on its own slot alone."""
        super().do_wait(step._replace(us=abs(step.us)))

    def do_amend(self, step: do.Amend) -> None:
        """Never: a bucket that is given back to has been refilled by the limit that was refused."""

    async def do_add(self, step: do.Add) -> None:
        """Never under a bare key, which may count in what a refusal has left empty."""
        await super().do_add(step._replace(bare=False))

    async def ask(self, step: do.PreCommit, name_of_side: Any) -> None:
        await super().ask(step, name_of_side)
        tags = {tag_of(self.offers[n % len(self.offers)].key) for n in step.offers}
        if len(tags) > 1:
            self.marks.add("several slots")


def tamed(history: History) -> History:
    """The same without large numbers.

    What a refusal by another slot takes off a double, or off a counter that is full, is not what was added.
    """
    asks = (do.PreCommit, do.Settle, do.Add)
    steps = (_tame(step) if isinstance(step, asks) else step for step in history.steps)
    return History(history.offers, tuple(steps))


def _tame(value: Any) -> Any:
    if isinstance(value, Usage):
        return Usage(**{one.name: _tame(getattr(value, one.name)) for one in fields(value)})
    if isinstance(value, tuple):
        parts = [_tame(one) for one in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return MANY if type(value) is int and value > MANY else value


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """One loop for all histories of a test."""
    with asyncio.Runner() as runner:
        yield runner


def compare(history: History, on: Store, runner: asyncio.Runner) -> Twins:
    """Play one history on a cluster that has nothing in it, and leave nothing there."""

    async def play() -> Twins:
        twins = OverSlots(history.offers, on.recording)
        try:
            await twins.run(history.steps)
        finally:
            await twins.redis.limiter.aclose()
        return twins

    try:
        twins = runner.run(play())
    finally:
        immortal = on.clear()
    assert immortal == []
    return twins


@pytest.mark.parametrize("part", range(PARTS))
def test_random_histories(part: int, shared_cluster: RedisCluster, runner: asyncio.Runner) -> None:
    """R1-R12, R14, R17, B53: what is over several slots counts as in memory, step by step."""
    wanted = max(examples(HISTORIES) // PARTS, 1)
    reached = Reached("memory against a cluster")
    on = store(shared_cluster)

    @settings(max_examples=wanted)
    @given(histories(STEPS).map(tamed))
    def play(history: History) -> None:
        reached.history(compare(history, on, runner).marks)

    play()
    if wanted >= ENOUGH:
        reached.require(0.05, ("refusal", "rollover between hold and settle", "reused id"))
        reached.require(0.05, ("lapsed lease", "post-stream", "cancel", "renew"))
        reached.require(0.3, ("several slots",))
