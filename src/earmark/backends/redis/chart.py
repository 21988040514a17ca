"""Which master of a cluster has which slot, as far as is known: shared by all loops, each of which may learn more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from earmark.backends.redis.messages import Message

Address = tuple[str, int]
"""Host and port."""

SLOTS: Final = REDIS_CLUSTER_HASH_SLOTS


class Range(NamedTuple):
    """Slots that are next to each other, and the nodes that have them, the master first."""

    first: int
    last: int
    nodes: Sequence[Address]


class Chart:
    """See above. It may be read and written by any thread: nothing in it is changed by two steps.

    Args:
        seeds: the nodes that are known before any was asked.

    Attributes:
        masters: those that have slots.
        nodes: the seeds, and those that were told of last.
    """

    def __init__(self, seeds: Iterable[Address]) -> None:
        self._seeds = tuple(seeds)
        self.nodes = self._seeds
        self.masters: frozenset[Address] = frozenset()
        self._owners: list[Address | None] = [None] * SLOTS

    @property
    def is_known(self) -> bool:
        """Whether anything is on it."""
        return bool(self.masters)

    def owner(self, slot: int) -> Address | None:
        """The master that has a slot."""
        return self._owners[slot]

    def address_of(self, message: Message) -> Address | None:
        """Where a message belongs."""
        return self._owners[slot_of(message)]

    def learn(self, ranges: Iterable[Range]) -> None:
        """Draw it anew, by what a node has told.

        A slot that it leaves out stays where it was: nobody has it for a moment, or the node has just come and knows
        little yet. Its former master knows better, or will.
        """
        owners = [*self._owners]
        heard = dict.fromkeys(self._seeds)
        for first, last, nodes in ranges:
            owners[first : last + 1] = [nodes[0]] * (last + 1 - first)
            heard.update(dict.fromkeys(nodes))
        self._owners = owners
        self.nodes = tuple(heard)
        self.masters = frozenset(owner for owner in owners if owner is not None)

    def move(self, slot: int, master: Address) -> None:
        """One slot is elsewhere."""
        self._owners[slot] = master
        self.masters |= {master}
        if master not in self.nodes:
            self.nodes += (master,)

    def tag_at(self, master: Address) -> str | None:
        """A tag of keys that are there; None where none can be."""
        tags = map(str, range(SLOTS))
        return next((tag for tag in tags if self._owners[_slot_of_key(tag)] == master), None)


def slot_of(message: Message) -> int:
    """The slot of all keys of a message."""
    return _slot_of_key(message.keys[0])


def _slot_of_key(key: str) -> int:
    return int(key_slot(key.encode()))
