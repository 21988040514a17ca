"""The lines of one event loop to the masters of a cluster, and who finds out which of them has which slot.

Every master has a line of its own, with its own round trips, its own deadline and its own outage: one that is lost
takes nothing with it but its slots. A message goes to the master that has the slot of its keys. One that the master
sends elsewhere has not been run there, and goes on as it is: to the new master (`MOVED`, after which the chart is drawn
anew), once to the one that is taking the slot over (`ASK`), or there again after a pause, until its deadline, while the
keys of a slot are spread over two (`TRYAGAIN`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from typing import Any, Final, Protocol

from redis import exceptions

from earmark.backends.redis.asked import Asked, Watch
from earmark.backends.redis.chart import Address, Chart, Range, slot_of
from earmark.backends.redis.failures import Outage, failure, reason_of
from earmark.backends.redis.line import CLOSED
from earmark.backends.redis.messages import Message
from earmark.backends.redis.node import Node
from earmark.backends.redis.rack import REST, Rack, Tray
from earmark.backends.redis.routed import Routed, is_astray, is_moved
from earmark.backends.redis.standing import OfMaster, Standing
from earmark.backends.redis.survey import Survey
from earmark.backends.redis.trips import fail

# A message that is sent elsewhere so often waits before it goes on: the nodes do not agree yet.
_HOPS: Final = 3
_PAUSE: Final = 0.02

# So often, in seconds, a fleet that closes looks whether anything is owed still: other loops may deliver it as well.
_LOOK: Final = 0.005

_NOT_SERVED: Final = "not served"


class NodeMaker(Protocol):
    """Makes the line to one master."""

    def __call__(self, address: Address, fleet: Fleet, standing: Standing, *, brief: bool) -> Node:
        """`brief`: it ends as soon as there is nothing to do."""
        ...


class Fleet:
    """See above. To be used on one loop alone.

    Args:
        chart: which master has which slot.
        ask: asks one node for that.
        address_of: where a node is of which another one, whose address comes first, tells the host and the port.
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
        address_of: Callable[[Address, str, int], Address],
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
        self._address_of = address_of
        self._make = make
        self._rack = rack
        self._probe = probe
        self._standing = standing
        self._timeout = timeout
        self._brief = brief
        self._nodes: dict[Address, Node] = {}
        self._unrouted: deque[Routed] = deque()  # until it is known where they belong
        self._holes: set[int] = set()  # slots of which that was asked for too long
        self._pausing: dict[Routed, asyncio.TimerHandle] = {}
        self._watch = Watch(self.loop, timeout, self._oldest, self._too_late)
        self._watch.patient = True
        self._survey = Survey(
            chart,
            ask,
            self._is_well,
            self._learned,
            self._is_enough,
            self._lose,
            self._unknown,
            timeout,
        )
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

    def may_need(self, node: Node) -> bool:
        """Whether a line has to be there still: it may be asked something, or nobody else waits for another one."""
        nodes = self._nodes.values()
        if node not in nodes:
            return False
        waits = not node.late and any(one.late and not one.is_done for one in nodes)
        return waits or self._is_on_its_way() or any(one.at_work for one in nodes)

    def trouble(self, message: Message) -> Exception | None:
        """Why the master of a message cannot be asked now, or None."""
        owner = self._chart.address_of(message)
        if owner is None:
            return self._lost if self._is_hole(slot_of(message)) else None
        node = self._nodes.get(owner)
        return None if node is None or node.over else node.down

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
            self._hand_over(asked, owner)
        elif self._closed or self._is_hole(asked.slot):
            fail(asked, failure(self._lost or CLOSED, sent=asked.again))
        else:
            asked.deadline = self._watch.deadline()
            self._unrouted.append(asked)
            self._watch.begin()
            self._survey.begin()

    def _is_hole(self, slot: int) -> bool:
        """Whether it is of no use to wait until the master of a slot is known."""
        return self._lost is not None and (slot in self._holes or not self._chart.is_known)

    def _hand_over(self, asked: Routed, address: Address) -> None:
        asked.at = address
        self._node(address).take(asked)

    def _node(self, address: Address) -> Node:
        node = self._nodes.get(address)
        if node is None or node.over:
            standing = OfMaster(self._standing, address, self.refresh)
            brief, late = self._brief or node is not None, self._is_ending()
            node = self._nodes[address] = self._make(address, self, standing, brief=brief)
            if late:
                node.be_late()
        return node

    def _is_ending(self) -> bool:
        return any(node.is_ending for node in self._nodes.values() if not node.over)

    def send_on(self, asked: Routed, error: Exception) -> bool:
        """See what becomes of a message that its master did not run; False: it is an answer."""
        there: Address | None = None
        if isinstance(error, exceptions.AskError):
            told: Any = error
            there = self._address_of(asked.at, told.host, told.port)
            if is_moved(error):
                self._chart.move(asked.slot, there)
                self._find()
                self._survey.begin()
        elif isinstance(error, exceptions.ClusterDownError) and _NOT_SERVED in str(error):
            self._survey.begin()
        elif not (isinstance(error, exceptions.TryAgainError) or is_astray(error)):
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
            self._hand_over(asked, there)
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
        """A master is lost: another may have taken its place."""
        self._survey.begin()

    def _is_well(self, address: Address) -> bool:
        node = self._nodes.get(address)
        return node is not None and node.down is None

    def _learned(self) -> None:
        """There is another chart: everything goes where it belongs by now."""
        self._find()
        for address in self._nodes.keys() - self._chart.masters:
            for asked in self._nodes.pop(address).retire():
                if isinstance(asked, Routed):
                    self._send(asked)
        self.wake()

    def _find(self) -> None:
        """More is known: what has waited for that goes on, all else waits as long as it would have."""
        self._rack.sort()
        owner = self._chart.owner
        self._holes = {slot for slot in self._holes if owner(slot) is None}
        if self._lost is not None and self._chart.is_known and not self._holes:
            self._lost = None
            self._standing.back()
        waiting = [*self._unrouted]
        self._unrouted.clear()
        for asked in waiting:
            if owner(asked.slot) is None:
                self._unrouted.append(asked)
            else:
                self._send(asked)

    def _is_enough(self) -> bool:
        """Whether the master of every slot is known that is asked for, or was."""
        waiting = any(not asked.answer.done() for asked in self._unrouted)
        return self._lost is None and not waiting and not self._rack.is_lost

    def _lose(self, error: Exception, slot: int | None = None) -> None:
        """There is no chart to go by, or this slot is not on it."""
        if self._lost is None:
            self._standing.lost()
        self._lost = error
        passes = isinstance(failure(error, sent=False), Outage)
        self._standing.found(reason_of(error), passes=passes)
        if slot is not None:
            self._holes.add(slot)
        self._fail_unrouted(error)

    def _unknown(self) -> None:
        """Nobody will draw a chart any more."""
        self._holes.clear()
        self._fail_unrouted(CLOSED, all_of_them=True)
        if self._lost is not None:
            self._lost = None
            self._standing.gone()

    def _fail_unrouted(self, error: Exception, *, all_of_them: bool = False) -> None:
        """Whoever waits for what is not to be had is told so; of the others somebody may know still."""
        waiting = [*self._unrouted]
        self._unrouted.clear()
        for asked in waiting:
            if all_of_them or self._is_hole(asked.slot):
                fail(asked, failure(error, sent=asked.again))
            else:
                self._unrouted.append(asked)

    def _oldest(self) -> Routed | None:
        return next((asked for asked in self._unrouted if not asked.answer.done()), None)

    def _too_late(self) -> None:
        asked = self._oldest()
        if asked is None:
            return
        if self._chart.is_known:
            reason = f"no master is known of slot {asked.slot}"
            self._lose(Outage(reason, sent=False), asked.slot)
        else:
            self._lose(Outage(f"no answer within {self._timeout:g} s", sent=False))
        if self._oldest() is not None:
            self._watch.begin()

    # What is owed, and the end.

    def wake(self) -> None:
        """Deliver what is owed by now; a line that has ended without its master is not begun again for that."""
        if self._closed:
            return
        for address in self._rack.addresses():
            node = self._nodes.get(address)
            if node is None or not node.over or node.down is None:
                self._node(address).wake()
        if self._rack.is_lost:
            self._survey.begin()

    async def aclose(self, seconds: float) -> None:
        """Answer who has asked and deliver what is owed, for at most so many seconds, and close."""
        try:
            await self._deliver_all(self.loop.time() + seconds)
            await asyncio.gather(*(node.aclose(0) for node in tuple(self._nodes.values())))
        finally:
            self._closed = True
            self._end()
            await self._survey.aclose()

    async def _deliver_all(self, end: float) -> None:
        """Wait until all are answered and nobody is owed anything: delivery to one may have others owed what follows.

        A line that has ended without its master is not begun again: so does one whose loop is ending.
        """
        self.wake()
        given_up: set[Address] = set()
        while (asked := self._is_asked()) or self._rack:
            owed = set(self._rack.addresses()) - given_up
            if not (asked or owed or self._rack.is_lost) or self.loop.time() >= end:
                return
            for address in owed:
                node = self._nodes.get(address)
                if node is not None and node.over and node.down is not None:
                    given_up.add(address)
                else:
                    self._node(address).wake()
            await asyncio.sleep(_LOOK)

    def _is_asked(self) -> bool:
        """Whether anything has no answer yet."""
        at_work = any(node.asked for node in self._nodes.values() if not node.over)
        return at_work or self._is_on_its_way()

    def _is_on_its_way(self) -> bool:
        """Whether anything has no answer yet that no line has."""
        return any(not asked.answer.done() for asked in (*self._unrouted, *self._pausing))

    def _end(self) -> None:
        """Whoever waits is told, and nothing more is seen to."""
        self._watch.end()
        for asked, timer in self._pausing.items():
            timer.cancel()
            fail(asked, failure(CLOSED, sent=asked.again))
        self._unknown()
