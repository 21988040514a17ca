"""Plays a history on a gateway of one's own, beside the plain model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from earmark.testing.clock import ManualClock
from earmark.testing.histories.driver import Driver
from earmark.testing.histories.gateway import Gateway
from earmark.testing.histories.steps import History


def play(history: History, make_gateway: Callable[[ManualClock], Gateway]) -> None:
    """Play a history, and compare after each step whatever is shown with what the plain model says.

    It runs an asyncio event loop of its own, on which the gateway is made, used and closed: a test that calls it is a
    plain function.

    Args:
        history: what happens.
        make_gateway: returns what is tested, with nothing kept in it, on this clock, which the history moves. Leases
            are a minute where a step does not say otherwise.

    Raises:
        AssertionError: something came out otherwise; its notes say in which step.
    """
    with asyncio.Runner() as runner:

        async def make(clock: ManualClock) -> Gateway:
            return make_gateway(clock)

        made: list[Gateway] = []

        def keep(clock: ManualClock) -> Gateway:
            made.append(runner.run(make(clock)))
            return made[0]

        try:
            Driver(history.offers, keep, runner.run).run(history.steps)
        finally:
            for gateway in made:
                runner.run(gateway.aclose())
