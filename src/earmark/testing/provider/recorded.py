"""A body that is streamed as it was recorded, cut anywhere, with pauses that a test ends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import anyio

MEDIA_TYPES: Final = {
    ".sse": "text/event-stream",
    ".ndjson": "application/x-ndjson",
    ".jsonl": "application/x-ndjson",
    ".json": "application/json",
}
"""How a recording is served, by the end of its file's name. Payloads, one a line, are served as they stand."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A body.

    Attributes:
        media_type: its type.
        content: the whole of it.
        without_usage: what is left of it for a request that did not ask for usage; None: the whole of it.
        piece: it is sent in so many bytes at a time, since a network cuts where it likes.
    """

    media_type: str
    content: bytes
    without_usage: bytes | None = None
    piece: int = 100

    @classmethod
    def load(cls, path: Path) -> Self:
        """The body in a file.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is empty, or its name does not say what it is.
        """
        media_type = MEDIA_TYPES.get(path.suffix.lower())
        content = path.read_bytes()
        if media_type is None or not content:
            msg = f"a recording is a file that is not empty and ends in {', '.join(MEDIA_TYPES)}: {path}"
            raise ValueError(msg)
        return cls(media_type, content)

    def asked_for(self, asked: Mapping[str, Any]) -> bytes:
        """What a request gets of it."""
        options: Mapping[str, Any] = asked.get("stream_options") or {}
        if self.without_usage is None or options.get("include_usage"):
            return self.content
        return self.without_usage


class Pause:
    """Where a stream stops, by the bytes sent until then, and waits for `go_on`.

    Attributes:
        ended: set when the stream is over, or its client gone.
    """

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes
        self.ended = anyio.Event()
        self._passes = anyio.Semaphore(0)

    def go_on(self) -> None:
        """Let the stream go on to the next stop, or to its end."""
        self._passes.release()

    async def pieces(self, content: bytes, piece: int) -> AsyncIterator[bytes]:
        """The pieces of a body, with the stops between them."""
        start = 0
        for stop in self.sizes:
            for part in _pieces(content[start:stop], piece):
                yield part
            if stop > len(content):
                return
            start = stop
            await self._passes.acquire()
        for part in _pieces(content[start:], piece):
            yield part


def _pieces(content: bytes, piece: int) -> Iterator[bytes]:
    return (content[at : at + piece] for at in range(0, len(content), piece))
