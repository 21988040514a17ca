"""A provider's stream on its way: in which pieces it comes, and how it ends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import anyio

from earmark.testing.streams.bodies.shape import Stream

Ending = Literal["stop", "error", "hang"]
"""What a source does after its last piece: it ends, it raises a ConnectionError, or it waits for ever."""

Piece = bytes | str | Mapping[str, Any]


@dataclass(frozen=True)
class Body:
    """A stream as a provider sends it.

    Attributes:
        stream: what is sent, and what is true of it: dialect, usage, outcome, number of choices.
        pieces: the items that the source gives.
        ending: what it does after them.
        whole: whether these are all of its pieces.
    """

    stream: Stream
    pieces: tuple[Piece, ...]
    ending: Ending
    whole: bool

    @property
    def complete(self) -> bool:
        """Whether everything is sent and the source ends: then `stream` says what an observer must make of it."""
        return self.whole and self.ending == "stop"

    async def source(self) -> AsyncIterator[Piece]:
        """A new source that sends it.

        Raises:
            ConnectionError: after the last piece, where it ends so.
        """
        for piece in self.pieces:
            yield piece
        if self.ending == "error":
            msg = "the provider has gone away"
            raise ConnectionError(msg)
        if self.ending == "hang":
            await anyio.sleep_forever()
