"""The line to one master of a cluster, which ends with the lines to the others: any of them may leave it more to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from earmark.backends.redis.asked import Asked
from earmark.backends.redis.chart import Address
from earmark.backends.redis.line import Line
from earmark.backends.redis.messages import Message
from earmark.backends.redis.owed import Owed
from earmark.backends.redis.rack import Tray
from earmark.backends.redis.routed import Routed, Sender
from earmark.backends.redis.wire import Wire, command


class Whole(Sender, Protocol):
    """All lines of a loop."""

    def probe_at(self, address: Address) -> str | None:
        """A key of a master that may be lost; None where it has no slot for one."""
        ...

    def may_need(self, node: Node) -> bool:
        """Whether a line has to be there still."""
        ...

    def wake(self) -> None:
        """Deliver what is owed by now."""
        ...


class Node(Line):
    """The line to one master.

    Attributes:
        fleet: where it belongs; set by whoever makes it.
        address: of the master.
        late: whether it was begun while others were ending: a loop that ends does not wait for it, but for those.
    """

    fleet: Whole
    address: Address
    late = False

    @property
    def is_ending(self) -> bool:
        """Whether it ends as soon as there is nothing to do."""
        return self._ending

    @property
    def is_done(self) -> bool:
        """Whether it has hung up."""
        return self._task.done()

    def be_late(self) -> None:
        """Others are ending."""
        self.late = self._ending = True

    def _asked(self, message: Message, *, again: bool) -> Asked:
        """What is owed: what callers ask comes from the fleet."""
        tray = self._outbox
        routed = Routed(
            message, self.fleet, again=again, tray=tray if isinstance(tray, Tray) else None
        )
        routed.at = self.address
        return routed

    async def _try_to_write(self, wire: Wire) -> None:
        probe = self.fleet.probe_at(self.address)
        if probe is not None:
            await command(wire, "SET", probe, "", "PX", "1000")

    def _settle(self, owed: list[Owed], batch: list[Asked]) -> None:
        """What is owed still may belong to others by now."""
        super()._settle(owed, batch)
        self.fleet.wake()

    def _has_ended(self) -> bool:
        """What others do may leave something to do here, such as what follows from the resolution of a name."""
        return super()._has_ended() and (self.down is not None or not self.fleet.may_need(self))

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
