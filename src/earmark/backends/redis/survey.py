"""Finding out which master of a cluster has which slot, on one event loop: once at a time, and not too often."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from contextvars import Context
from typing import Final

from earmark.backends.redis.chart import Address, Chart, Range
from earmark.backends.redis.failures import Outage
from earmark.backends.redis.line import FIRST_PAUSE, LONGEST_PAUSE
from earmark.backends.redis.loops import OURS, Beginning
from earmark.backends.redis.trips import PATIENCE

# So many nodes are asked at the same time: the first answer counts.
_WAVE: Final = 3

# Seconds between the beginnings of two surveys, at least.
_APART: Final = 0.1


class Survey:
    """See above.

    Args:
        chart: what is to be drawn.
        ask: asks one node.
        is_well: whether a node is in reach, as far as is known: such are asked first.
        learned: called when the chart is drawn anew.
        is_enough: whether all is known that is asked for.
        failed: called each time when nobody could tell and there is no chart to go by.
        ended: called when it ends with its loop.
        timeout: seconds for which an answer is waited for.
    """

    def __init__(  # noqa: PLR0917 - each is another thing, and it is called once
        self,
        chart: Chart,
        ask: Callable[[Address], Awaitable[Sequence[Range]]],
        is_well: Callable[[Address], bool],
        learned: Callable[[], None],
        is_enough: Callable[[], bool],
        failed: Callable[[Exception], None],
        ended: Callable[[], None],
        timeout: float,
    ) -> None:
        self._chart = chart
        self._ask = ask
        self._is_well = is_well
        self._learned = learned
        self._is_enough = is_enough
        self._failed = failed
        self._ended = ended
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._later: asyncio.TimerHandle | None = None
        self._next = 0.0
        self._soon = asyncio.Event()
        self._closed = False

    def begin(self) -> None:
        """Draw the chart anew, unless that is under way."""
        if self._closed or self._later is not None:
            return
        if self._task is not None and not self._task.done():
            self._soon.set()
            return
        if self._loop.time() < self._next:
            self._later = self._loop.call_at(self._next, self._begin_now, context=Context())
        else:
            self._begin_now()

    def _begin_now(self) -> None:
        self._later = None
        self._task = self._loop.create_task(Beginning(self._run()), name=OURS, context=Context())

    async def aclose(self) -> None:
        """Draw nothing any more."""
        self._closed = True
        if self._later is not None:
            self._later.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            await self._draw()
        except asyncio.CancelledError:
            self._ended()
            raise

    async def _draw(self) -> None:
        """Ask until somebody knows all that is asked for; where nothing is missing, once."""
        pause = FIRST_PAUSE
        while True:
            self._next = self._loop.time() + _APART
            self._soon.clear()
            try:
                ranges = await self._ask_around()
            except Exception as error:  # noqa: BLE001 - whoever waits is told
                if not self._chart.is_known:
                    self._failed(error)
            else:
                self._chart.learn(ranges)
                self._learned()
            if self._chart.is_known and self._is_enough():
                return
            await self._rest(pause * random.uniform(0.5, 1))  # noqa: S311 - a spread, not a secret
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _rest(self, seconds: float) -> None:
        """Wait so long, or until there is another reason to ask."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._soon.wait()
        await asyncio.sleep(max(self._next - self._loop.time(), 0.0))

    async def _ask_around(self) -> Sequence[Range]:
        """The first answer that anybody gives.

        Who is at work with us is believed before others, but where something is missing: that may be what they miss.
        """
        nodes = list(self._chart.nodes)
        random.shuffle(nodes)
        well = [address for address in nodes if self._is_enough() and self._is_well(address)]
        others = [address for address in nodes if address not in well]
        failed: Exception = Outage("no node of the cluster is known", sent=False)
        for wave in (*_waves(well), *_waves(others)):
            asked = [self._ask(address) for address in wave]
            try:
                async with asyncio.timeout(PATIENCE * self._timeout):
                    return await _first(asked)
            except TimeoutError:
                failed = Outage(f"no answer within {self._timeout:g} s", sent=False)
            except Exception as error:  # noqa: BLE001 - the next ones may know
                failed = error
        raise failed


def _waves(nodes: Sequence[Address]) -> Iterator[Sequence[Address]]:
    for start in range(0, len(nodes), _WAVE):
        yield nodes[start : start + _WAVE]


async def _first(asked: Sequence[Awaitable[Sequence[Range]]]) -> Sequence[Range]:
    """The first answer; where there is none, what the last one failed at."""
    tasks = [asyncio.ensure_future(one) for one in asked]
    try:
        for task in asyncio.as_completed(tasks):
            with suppress(Exception):
                return await task
        return await tasks[-1]
    finally:
        for one in tasks:
            one.cancel()
        await asyncio.wait(tasks)
