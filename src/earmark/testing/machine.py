"""A state machine that plays random histories on a limiter and on a plain model, and shrinks what goes wrong.

Subclass it with a backend of your own, or with a gateway of your own, and give its `TestCase` to pytest or unittest:

    class MyMachine(LimiterMachine):
        def make_backend(self, clock):
            return MyBackend(clock=clock)

    TestMyMachine = MyMachine.TestCase

It needs hypothesis. Time is a `ManualClock`, which the machine moves to where something ends, and to the microseconds
beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from earmark.backends.memory import MemoryBackend
from earmark.backends.protocol import Backend
from earmark.testing.clock import ManualClock
from earmark.testing.histories import drawing, steps
from earmark.testing.histories.driver import Driver
from earmark.testing.histories.gateway import Gateway

__all__ = ["Gateway", "LimiterMachine"]

T = TypeVar("T")


def _drawn(strategy: st.SearchStrategy[T]) -> st.SearchStrategy[T]:
    """The same strategy under a short name: hypothesis shows strategies in reports, and these are long."""

    @st.composite
    def drawn(draw: st.DrawFn) -> T:
        return draw(strategy)

    return drawn()


def _has_asked(machine: LimiterMachine) -> bool:
    """Whether there is a reservation to do something with, be it open or not."""
    return machine.driver is not None and bool(machine.driver.pairs)


def _has_open(machine: LimiterMachine) -> bool:
    """Whether one of the latest is open."""
    driver = machine.driver
    return driver is not None and (last := driver.pick(0)) is not None and last.hold.state == "open"


class LimiterMachine(RuleBasedStateMachine):
    """Random steps on a limiter, each compared with what the plain model says.

    Checked after each: what every scope has used and has left, when that resets, the state of every reservation, and
    of a refusal every limit, figure and time (R1–R12, R17). Reservations at work (`async with`) are left out: how a
    backend renews them is its own.
    """

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        self.driver: Driver | None = None

    def make_backend(self, clock: ManualClock) -> Backend:
        """Return a backend in which nothing is kept, on this clock; its leases are a minute."""
        return MemoryBackend(clock=clock)

    def make_gateway(self, clock: ManualClock) -> Gateway:
        """Return what is tested; by default a limiter on `make_backend`."""
        return Gateway(self.make_backend(clock))

    def run(self, call: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401 - what the call returns
        """Run a call to its end, on the event loop of this history."""
        return self._runner.run(call)

    @initialize(offers=_drawn(drawing.offers()))
    def begin(self, offers: tuple[steps.Offer, ...]) -> None:
        """Take two or three scopes."""
        self.driver = Driver(offers, self._make, self.run)

    @rule(step=_drawn(drawing.pre_commits))
    def pre_commit(self, step: steps.PreCommit) -> None:
        """Ask, under an id of the caller's or without one."""
        self._step(step)

    @rule(step=_drawn(drawing.pre_commits))
    def pre_commit_another(self, step: steps.PreCommit) -> None:
        """The same: what nothing was taken for cannot be resolved."""
        self._step(step)

    @rule(step=_drawn(drawing.agains))
    def again(self, step: steps.Again) -> None:
        """Ask for an id again."""
        self._step(step)

    @precondition(_has_asked)
    @rule(step=_drawn(drawing.settles))
    def settle(self, step: steps.Settle) -> None:
        """Settle."""
        self._step(step)

    @precondition(_has_open)
    @rule(step=_drawn(drawing.settles_last))
    def settle_what_is_open(self, step: steps.Settle) -> None:
        """Settle, as long as something is open: that is what most of a gateway's requests come to."""
        self._step(step)

    @precondition(_has_asked)
    @rule(step=_drawn(drawing.endings))
    def finish(self, step: steps.Finish) -> None:
        """Close, abandon, cancel, renew, or drop the handle."""
        self._step(step)

    @rule(step=_drawn(drawing.adds))
    def add(self, step: steps.Add) -> None:
        """Count what no hold covers."""
        self._step(step)

    @rule(step=_drawn(drawing.waits))
    def wait(self, step: steps.Wait | steps.WaitFor) -> None:
        """Let time pass, or step the clock back."""
        self._step(step)

    @rule(step=_drawn(drawing.changes))
    def change(self, step: steps.Amend | steps.Enforce | steps.Reset) -> None:
        """Change an amount, roll a scope out or back, forgive."""
        self._step(step)

    @rule(step=_drawn(drawing.mistakes))
    def mistake(self, step: steps.Bad) -> None:
        """Give something for an amount that is none."""
        self._step(step)

    def teardown(self) -> None:
        """Let everything be over, and see that nothing is used any more."""
        driver = self.driver
        try:
            if driver is not None and driver.sound:
                driver.end()
            if driver is not None:
                self.run(driver.gateway.aclose())
        finally:
            self._runner.close()

    def _make(self, clock: ManualClock) -> Gateway:
        # Whatever belongs to an event loop is made on this one.
        async def make() -> Gateway:
            return self.make_gateway(clock)

        return self.run(make())  # type: ignore[no-any-return]

    def _step(self, step: steps.Step) -> None:
        if self.driver is not None:
            self.driver.step(step)
