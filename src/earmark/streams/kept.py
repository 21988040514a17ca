"""The bytes of one event, within bounds: whole up to a limit, beyond it their beginning and their end.

`response.completed` repeats the whole response and alone has the usage, near its end, so an event cannot just
be thrown away for its size; and it cannot just be collected either, since the size is the sender's to choose.
Of an event above the limit the first 4 KiB and the last 64 KiB are kept; `earmark.streams.salvage` makes of them what
can be made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

HEAD: Final = 4 * 1024
TAIL: Final = 64 * 1024

RawEvent = tuple[str | None, bytes, bytes | None]
"""The name of an event, its data, and None; of one above the limit the beginning and the end of its data."""

Search = Callable[[bytes], object]
"""Looks at bytes; None where it finds nothing."""


def anything(_: bytes) -> bool:
    """Find something in whatever there is."""
    return True


class Kept:
    """Collects bytes piece by piece; a piece costs the same however many came before it."""

    __slots__ = ("_body", "_head", "_limit")

    def __init__(self, limit: int) -> None:
        self._limit = max(limit, HEAD)
        self._body = bytearray()
        self._head: bytes | None = None

    def __len__(self) -> int:
        return len(self._body)

    def add(self, piece: bytes) -> None:
        """Take in a piece, and let go of the middle once the limit is passed."""
        self._body += piece
        if self._head is None:
            if len(self._body) <= self._limit:
                return
            self._head = bytes(self._body[:HEAD])
            del self._body[:HEAD]
        # Trimmed by halves, so that a piece of one byte does not move the whole tail.
        if len(self._body) > 2 * TAIL:
            del self._body[:-TAIL]

    @property
    def beginning(self) -> bytes:
        """The first bytes, as far as they go."""
        return bytes(self._body[:HEAD]) if self._head is None else self._head

    def event(self, name: str | None) -> RawEvent:
        """The event that these bytes are the data of."""
        if self._head is None:
            return name, bytes(self._body), None
        return name, self._head, bytes(self._body[-TAIL:])
