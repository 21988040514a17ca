"""What the store is owed, sorted by the servers of a cluster: one that is lost holds up nothing of the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Final

from earmark.backends.redis.chart import Address
from earmark.backends.redis.messages import Message
from earmark.backends.redis.owed import Outbox, Owed
from earmark.forking import begins_anew

# Seconds for which a tray is left alone after its server has sent something elsewhere.
REST: Final = 0.05


class Rack:
    """An outbox of trays, one for each server; shared by all loops.

    Args:
        size: so many messages at most, in all trays together.
        address_of: where a message belongs, as far as is known.
    """

    def __init__(self, size: int, address_of: Callable[[Message], Address | None]) -> None:
        self._size = size
        self._address_of = address_of
        self.begin_anew()
        begins_anew(self)

    def begin_anew(self) -> None:
        """Nothing is owed."""
        self._trays: dict[Address | None, Tray] = {}
        # Held while anything is taken from one tray for another: nobody sees it in neither.
        self._lock = threading.Lock()

    def __len__(self) -> int:
        with self._lock:
            return self._count()

    def __contains__(self, name: object) -> bool:
        """Whether it is owed that a reservation of this name is over."""
        with self._lock:
            return any(name in tray for tray in self._trays.values())

    def _count(self) -> int:
        return sum(map(len, tuple(self._trays.values())))

    @property
    def lost(self) -> int:
        """How many could not be kept, or were too old."""
        return sum(tray.lost for tray in tuple(self._trays.values()))

    def tray(self, address: Address | None) -> Tray:
        """What is owed to one server."""
        tray = self._trays.get(address)
        # One of two threads that make it at the same time is given the other's.
        return self._trays.setdefault(address, Tray(self, self._size)) if tray is None else tray

    def add(self, message: Message) -> None:
        """Keep a message; one too many is lost."""
        with self._lock:
            tray = self.tray(self._address_of(message))
            kept = self._count() < self._size
            if kept:
                tray.add(message)
        if not kept:
            tray.lose(f"no more than {self._size} are kept")

    def put(self, owed: Iterable[Owed], done: Callable[[], None]) -> None:
        """Keep what was kept before, each where it belongs by now; `done` takes it from where it was."""
        with self._lock:
            done()
            self._put(owed)

    def _put(self, owed: Iterable[Owed]) -> None:
        for one in owed:
            self.tray(self._address_of(one.message)).put(one)

    def sort(self) -> None:
        """The servers have other slots than before: see where everything belongs by now."""
        with self._lock:
            for tray in tuple(self._trays.values()):
                self._put(tray.empty())

    @property
    def is_lost(self) -> bool:
        """Whether anything is owed of which nobody knows where it belongs."""
        with self._lock:
            return bool(self._trays.get(None))

    def addresses(self) -> list[Address]:
        """Those who are owed anything."""
        with self._lock:
            return [address for address, tray in self._trays.items() if address and tray]


class Tray(Outbox):
    """What is owed to one server.

    Args:
        rack: where it belongs.
        size: that of the rack.

    Attributes:
        resting: whether it is left alone for now, since its server has sent something elsewhere.
    """

    def __init__(self, rack: Rack, size: int) -> None:
        super().__init__(size)
        self._rack = rack
        self.resting = False

    @property
    def deliverable(self) -> bool:
        """Whether there is anything to take."""
        return not self.resting and super().deliverable

    def put(self, owed: Owed) -> None:
        """Keep what was kept before."""
        self._owed.append(owed)

    def empty(self) -> list[Owed]:
        """Take out everything but what is under way."""
        with self._lock:
            owed = list(self._owed)
            self._owed.clear()
        return owed

    def settle(self, taken: list[Owed], still: list[Owed], failed: int) -> None:
        """Of what was taken, keep what is owed still, which may belong to another server by now."""
        self._rack.put(still, lambda: Outbox.settle(self, taken, [], failed))
