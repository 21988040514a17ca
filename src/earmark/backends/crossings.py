"""Who asks for a request id in this process while the reservation that has it is resolved here (R9).

A store answers with the reservation that was open when it looked. Until that answer is heard somebody else in this
process may have resolved it: then the id is free, and the store has to be asked again.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Final

from earmark.core.hold import Hold, Verb
from earmark.forking import begins_anew
from earmark.ids import Id

Over = set[Id]
"""What was resolved since somebody has asked."""

_NOBODY: Final[Mapping[int, Over]] = {}


class Crossings:
    """Of one process and backend, from any thread."""

    __slots__ = ("__weakref__", "_asking", "_ending", "_lock")

    def __init__(self) -> None:
        self.begin_anew()
        begins_anew(self)

    def begin_anew(self) -> None:
        """In a forked child nobody asks, and nothing is being resolved."""
        self._asking: dict[str, dict[int, Over]] = {}
        self._ending: dict[object, Id] = {}
        self._lock = threading.RLock()

    @contextmanager
    def asking(self, name: str) -> Generator[Over]:
        """Be told, while the block runs, which reservations of a name are resolved."""
        over = Over()
        with self._lock:
            others = self._asking.setdefault(name, {})
            others[id(over)] = over
            # Struck, if another ask has ended between the two lines above.
            self._asking[name] = others
        try:
            yield over
        finally:
            with self._lock:
                del others[id(over)]
                if not others:
                    self._asking.pop(name, None)

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
            for over in tuple(self._asking.get(hold.name, _NOBODY).values()):
                over.add(hold.id)

    def crossed(self, hold: Hold, over: Over) -> bool:
        """Whether what the store has answered with was resolved since it was asked, or is about to be."""
        return hold.id in tuple(self._ending.values()) or hold.id in over
