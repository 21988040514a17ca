"""Who asks for a request id in this process while the reservation that has it is resolved here (R9).

A store answers with the reservation that was open when it looked. Until that answer is heard somebody else in this
process may have resolved it: then the id is free, and the store has to be asked again.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

from earmark.core.hold import Hold, Verb
from earmark.ids import Id

Over = set[Id]
"""What was resolved since somebody has asked."""


class Crossings:
    """Of one process and backend, from any thread."""

    __slots__ = ("_asking", "_ending", "_lock")

    def __init__(self) -> None:
        self._asking: dict[str, list[Over]] = {}
        self._ending: dict[object, Id] = {}
        self._lock = threading.Lock()  # finalisers do not take it

    @contextmanager
    def asking(self, name: str) -> Generator[Over]:
        """Be told, while the block runs, which reservations of a name are resolved."""
        over = Over()
        with self._lock:
            self._asking[name] = [*self._asking.get(name, ()), over]
        try:
            yield over
        finally:
            with self._lock:
                left = [one for one in self._asking.pop(name) if one is not over]
                if left:
                    self._asking[name] = left

    @contextmanager
    def ending(self, hold: Hold, verb: Verb) -> Generator[None]:
        """A reservation is resolved in this block; a withdrawal spares whoever was given it."""
        if verb == "withdraw":
            yield
            return
        me = object()
        self._ending[me] = hold.id
        try:
            yield
        finally:
            self.ended(hold)  # first: whoever looks finds it here or there
            del self._ending[me]

    def ended(self, hold: Hold) -> None:
        """A reservation is over. Takes no lock."""
        if self._asking:
            for over in self._asking.get(hold.name, ()):
                over.add(hold.id)

    def crossed(self, hold: Hold, over: Over) -> bool:
        """Whether what the store has answered with was resolved since it was asked, or is about to be."""
        return hold.id in tuple(self._ending.values()) or hold.id in over
