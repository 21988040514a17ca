"""A message on a cluster, which finds its way by the slot of its keys."""

from __future__ import annotations

import asyncio
from typing import Protocol

from redis import exceptions

from earmark.backends.redis.asked import Asked
from earmark.backends.redis.chart import Address, slot_of
from earmark.backends.redis.messages import Message
from earmark.backends.redis.rack import Tray


class Sender(Protocol):
    """Who knows the way."""

    loop: asyncio.AbstractEventLoop

    def send_on(self, asked: Routed, error: Exception) -> bool:
        """See what becomes of a message that its master did not run; False: the error is its answer."""
        ...


class Routed(Asked):
    """A message that finds its way by the slot of its keys.

    Attributes:
        at: whose line has it.
        hops: how often it was sent elsewhere.
        tray: where it is owed from; None: a caller waits for it.
        until: when it is given up, once it was sent elsewhere.
    """

    __slots__ = ("_asking", "_sender", "at", "hops", "slot", "tray", "until")

    def __init__(
        self, message: Message, sender: Sender, *, again: bool, tray: Tray | None = None
    ) -> None:
        super().__init__(message, sender.loop.create_future(), 0.0, again=again)
        self._sender = sender
        self._asking = False
        self.slot = slot_of(message)
        self.at: Address = ("", 0)
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
        self._asking = isinstance(error, exceptions.AskError) and not is_moved(error)
        self.again = self.again or is_astray(error)
        return self._sender.send_on(self, error)


def is_astray(error: Exception) -> bool:
    """Whether a key has left while its slot is moved, by a message before this one in the same call of a script.

    A script reads all before it writes, and finds that at the first key.
    """
    return "attempted to access a non local key" in str(error)


def is_moved(error: Exception) -> bool:
    """Whether a slot has another master, for good."""
    return isinstance(error, exceptions.MovedError)
