"""The lines of one event loop to the masters of a cluster, and who finds out which of them has which slot.

Every master has a line of its own, with its own round trips, its own deadline and its own outage: one that is lost takes
nothing with it but its slots. A message goes to the master that has the slot of its keys. One that the master sends
elsewhere has not been run there, and goes on as it is: to the new master (`MOVED`, after which the chart is drawn
anew), once to the one that is taking the slot over (`ASK`), or there again after a pause, until its deadline, while the keys
of a slot are spread over two (`TRYAGAIN`).
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from contextvars import Context
from typing import Final, Protocol

from redis import exceptions

from earmark.backends.redis.asked import Asked, Watch
from earmark.backends.redis.chart import Address, Chart, Range, slot_of
from earmark.backends.redis.connection import Connection, command
from earmark.backends.redis.failures import Outage, failure, reason_of
from earmark.backends.redis.line import CLOSED, FIRST_PAUSE, LONGEST_PAUSE, PATIENCE, Line, fail
from earmark.backends.redis.messages import Message
from earmark.backends.redis.rack import REST, Rack, Tray
from earmark.backends.redis.standing import Standing

# So many nodes are asked at the same time which of them has which slot: the first answer counts.
_WAVE: Final = 3

# Seconds between two such questions, at least.
_APART: Final = 0.1

# A message that is sent elsewhere so often waits before it goes on: the nodes do not agree yet.
_HOPS: Final = 3
_PAUSE: Final = 0.02

_NOT_SERVED: Final = "not served"


class Routed(Asked):
    """A message that finds its way by the slot of its keys.

    Attributes:
        hops: how often it was sent elsewhere.
        tray: where it is owed from; None: a caller waits for it.
        until: when it is given up, once it was sent elsewhere.
    """

    __slots__ = ("_asking", "_fleet", "hops", "slot", "tray", "until")

    def __init__(
        self, message: Message, fleet: Fleet, *, again: bool, tray: Tray | None = None
    ) -> None:
        super().__init__(message, fleet.loop.create_future(), 0.0, again=again)
        self._fleet = fleet
        self._asking = False
        self.slot = slot_of(message)
        self.hops = 0
        self.tray = tray
        self.until = 0.0

    @property
    def group(self) -> object:
        """Those of one slot, but for one that was sent elsewhere: others may be in its way."""
        return self if self.hops else self.slot

    @property
    def asking(self) -> bool:
        """Whether it was sent there by the one that has the slot still."""
        return self._asking

    def is_sent_elsewhere(self, error: Exception) -> bool:
        """Whether an error says so; then it is on its way."""
        self._asking = isinstance(error, exceptions.AskError) and not _is_moved(error)
        return self._fleet.send_on(self, error)


def _is_moved(error: Exception) -> bool:
    return isinstance(error, exceptions.MovedError)


class Node(Line):
    """The line to one master.

    Attributes:
        fleet: where it belongs; set by whoever makes it.
        address: of the master.
    """

    fleet: Fleet
    address: Address

    def _asked(self, message: Message, *, again: bool) -> Asked:
        """What is owed: what callers ask comes from the fleet."""
        tray = self._outbox
        return Routed(
            message, self.fleet, again=again, tray=tray if isinstance(tray, Tray) else None
        )

    async def _try_to_write(self, connection: Connection) -> None:
        probe = self.fleet.probe_at(self.address)
        if probe is not None:
            await command(connection, "SET", probe, "", "PX", "1000")

    def retire(self) -> Sequence[Asked]:
        """The master has no slots any more: what waits goes elsewhere, and the line ends when all is answered."""
        left = tuple(self._waiting)
        self._waiting.clear()
        self._ending = True
        if self.down is None:
            self._wake.set()
        else:
            self._task.cancel()
        return left


class NodeMaker(Protocol):
    """Makes the line to one master."""

    def __call__(self, address: Address, fleet: Fleet, standing: Standing, *, brief: bool) -> Node:
        """`brief`: it ends as soon as there is nothing to do."""
        ...


class _Standing(Standing):
    """What a line says about its master: the fleet hears of it too."""

    def __init__(self, whole: Standing, address: Address, fleet: Fleet) -> None:
        self._whole = whole
        self._name = f"{address[0]}:{address[1]}"
        self._fleet = fleet

    def lost(self) -> None:
        self._whole.lost()

    def found(self, reason: str, *, passes: bool) -> None:
        self._whole.found(f"{self._name}: {reason}", passes=passes)
        self._fleet.refresh()  # another may have taken its place

    def back(self) -> None:
        self._whole.back()

    def gone(self) -> None:
        self._whole.gone()


class Fleet:
    """See above. To be used on one loop alone.

    Args:
        chart: which master has which slot.
        ask: asks one node for that.
        make: makes the line to a master.
        rack: what the masters are owed.
        probe: the name of a key under a tag that may be lost.
        standing: told when no chart can be had, and when one can again.
        timeout: seconds for which an answer is waited for.
        brief: whether its lines end as soon as there is nothing to do, since the loop is ending.
    """

    def __init__(  # noqa: PLR0917 - each is another thing, and it is called once
        self,
        chart: Chart,
        ask: Callable[[Address], Awaitable[Sequence[Range]]],
        make: NodeMaker,
        rack: Rack,
        probe: Callable[[str], str],
        standing: Standing,
        timeout: float,
        *,
        brief: bool = False,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._chart = chart
        self._ask = ask
        self._make = make
        self._rack = rack
        self._probe = probe
        self._standing = standing
        self._timeout = timeout
        self._brief = brief
        self._nodes: dict[Address, Node] = {}
        self._unrouted: deque[Asked] = deque()  # until there is a chart
        self._pausing: dict[Routed, asyncio.TimerHandle] = {}
        self._watch = Watch(self.loop, timeout, self._oldest, self._too_late)
        self._watch.patient = True
        self._charting: asyncio.Task[None] | None = None
        self._later: asyncio.TimerHandle | None = None
        self._next = 0.0
        self._lost: Exception | None = None
        self._closed = False

    @property
    def over(self) -> bool:
        """Whether it was closed."""
        return self._closed

    @property
    def down(self) -> Exception | None:
        """Why some master cannot be asked, or None."""
        downs = (node.down for node in self._nodes.values())
        return self._lost or next((down for down in downs if down is not None), None)

    def ask(self, message: Message, *, again: bool = False) -> asyncio.Future[str]:
        """Have a message answered."""
        return self.place(message, again=again).answer

    def place(self, message: Message, *, again: bool = False) -> Asked:
        """The same, for a caller that wants to know whether it was sent."""
        asked = Routed(message, self, again=again)
        self._send(asked)
        return asked

    def _send(self, asked: Routed) -> None:
        """Hand it to the line of its slot's master."""
        owner = self._chart.owner(asked.slot)
        if owner is not None:
            self._node(owner).take(asked)
        elif self._lost is not None or self._closed:
            fail(asked, failure(self._lost or CLOSED, sent=asked.again))
        else:
            asked.deadline = self._watch.deadline()
            self._unrouted.append(asked)
            if not self._watch.on:
                self._watch.begin()
            self.refresh()

    def _node(self, address: Address) -> Node:
        node = self._nodes.get(address)
        if node is None or node.over:
            standing = _Standing(self._standing, address, self)
            brief = self._brief or node is not None
            node = self._nodes[address] = self._make(address, self, standing, brief=brief)
        return node

    def send_on(self, asked: Routed, error: Exception) -> bool:
        """See what becomes of a message that its master did not run; False: it is an answer."""
        there: Address | None = None
        if isinstance(error, exceptions.AskError):
            there = (error.host, error.port)
            if _is_moved(error):
                self._chart.move(asked.slot, there)
                self._rack.sort()
                self.refresh()
        elif isinstance(error, exceptions.ClusterDownError) and _NOT_SERVED in str(error):
            self.refresh()
        elif not isinstance(error, exceptions.TryAgainError):
            return False
        asked.hops += 1
        now = self.loop.time()
        asked.until = asked.until or now + self._timeout
        if asked.answer.done():
            return True
        if asked.tray is not None or now >= asked.until:
            fail(asked, Outage(reason_of(error), sent=asked.again))
            self._let_rest(asked.tray)
        elif there is not None and asked.hops <= _HOPS:
            self._node(there).take(asked)
        else:
            self._pausing[asked] = self.loop.call_later(
                _PAUSE, self._go_on, asked, context=Context()
            )
        return True

    def _go_on(self, asked: Routed) -> None:
        del self._pausing[asked]
        if not asked.answer.done():
            self._send(asked)

    def _let_rest(self, tray: Tray | None) -> None:
        """Where a server has sent something elsewhere that it is owed, it would do so again at once."""
        if tray is not None and not tray.resting:
            tray.resting = True
            self.loop.call_later(REST, self._wake_up, tray, context=Context())

    def _wake_up(self, tray: Tray) -> None:
        tray.resting = False
        self.wake()

    def probe_at(self, address: Address) -> str | None:
        """A key of a master that may be lost; None where it has no slot for one."""
        tag = self._chart.tag_at(address)
        return None if tag is None else self._probe(tag)

    # Which master has which slot.

    def refresh(self) -> None:
        """Draw the chart anew, but not too often."""
        if self._closed or self._later is not None:
            return
        if self._charting is not None and not self._charting.done():
            return
        now = self.loop.time()
        if now < self._next:
            self._later = self.loop.call_at(self._next, self._refresh_now, context=Context())
        else:
            self._refresh_now()

    def _refresh_now(self) -> None:
        self._later = None
        self._next = self.loop.time() + _APART
        self._charting = self.loop.create_task(
            self._draw(), name="earmark.redis.chart", context=Context()
        )

    async def _draw(self) -> None:
        """Ask until somebody knows; where there is a chart already, once."""
        pause = FIRST_PAUSE
        try:
            while True:
                try:
                    ranges = await self._ask_around()
                except Exception as error:  # noqa: BLE001 - whoever waits is told
                    if self._chart.is_known:
                        return
                    self._lose(error)
                else:
                    self._learn(ranges)
                    return
                await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - a spread, not a secret
                pause = min(2 * pause, LONGEST_PAUSE)
        finally:
            if self._lost is not None:  # the loop is ending, or somebody has closed this
                self._lost = None
                self._standing.gone()
            self._fail_unrouted(CLOSED)

    async def _ask_around(self) -> Sequence[Range]:
        """The first answer of some nodes; those whose lines are well come first."""
        nodes = list(self._chart.nodes)
        random.shuffle(nodes)
        nodes.sort(key=lambda address: not self._is_well(address))
        failed: Exception = Outage("no node of the cluster is known", sent=False)
        for start in range(0, len(nodes), _WAVE):
            try:
                async with asyncio.timeout(PATIENCE * self._timeout):
                    return await _first(
                        [self._ask(address) for address in nodes[start : start + _WAVE]]
                    )
            except TimeoutError:
                failed = Outage(f"no answer within {self._timeout:g} s", sent=False)
            except Exception as error:  # noqa: BLE001 - the next ones may know
                failed = error
        raise failed

    def _is_well(self, address: Address) -> bool:
        node = self._nodes.get(address)
        return node is not None and node.down is None

    def _learn(self, ranges: Sequence[Range]) -> None:
        self._chart.learn(ranges)
        self._rack.sort()
        if self._lost is not None:
            self._lost = None
            self._standing.back()
        left = [*self._unrouted]
        self._unrouted.clear()
        for address in self._nodes.keys() - self._chart.masters:
            left += self._nodes.pop(address).retire()
        for asked in left:
            if isinstance(asked, Routed):
                self._send(asked)
        self.wake()

    def _lose(self, error: Exception) -> None:
        """There is no chart to go by."""
        if self._lost is None:
            self._standing.lost()
        self._lost = error
        passes = isinstance(failure(error, sent=False), Outage)
        self._standing.found(reason_of(error), passes=passes)
        self._fail_unrouted(error)

    def _fail_unrouted(self, error: Exception) -> None:
        while self._unrouted:
            asked = self._unrouted.popleft()
            fail(asked, failure(error, sent=asked.again))

    def _oldest(self) -> Asked | None:
        return next((asked for asked in self._unrouted if not asked.answer.done()), None)

    def _too_late(self) -> None:
        self._lose(Outage(f"no answer within {self._timeout:g} s", sent=False))

    # What is owed, and the end.

    def wake(self) -> None:
        """Deliver what is owed by now."""
        if self._closed:
            return
        for address in self._rack.addresses():
            self._node(address).wake()
        if self._rack and not self._chart.is_known:
            self.refresh()

    async def aclose(self, seconds: float) -> None:
        """Deliver what is owed, for at most so many seconds, and close."""
        end = self.loop.time() + seconds
        try:
            if self._rack:
                self.wake()
                if not self._chart.is_known and self._charting is not None:
                    await asyncio.wait([self._charting], timeout=seconds)
            nodes = tuple(self._nodes.values())
            left = max(end - self.loop.time(), 0.0)
            await asyncio.gather(*(node.aclose(left) for node in nodes))
        finally:
            self._closed = True
            self._watch.end()
            for asked, timer in self._pausing.items():
                timer.cancel()
                fail(asked, failure(CLOSED, sent=asked.again))
            if self._later is not None:
                self._later.cancel()
            if self._charting is not None:
                self._charting.cancel()
        if self._charting is not None:
            await asyncio.wait([self._charting])


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
