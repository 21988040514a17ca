"""Server-sent events, line by line as the WHATWG standard has them, cut at any byte.

A line ends with CR, LF or CRLF and with nothing else: U+2028 and its like are common inside JSON, and a
parser that cuts there sees two halves of an object. Everything is done on bytes, so that a cut inside a
UTF-8 character is no cut inside a line.

Three departures from the standard, for what providers send: an event at the very end counts without its
blank line; an `error:` field line is an event of that name (GPUStack); a JSON object that stands outside
any field is an event without a name (Vertex). A parser by the book drops each of them in silence.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from earmark.streams.kept import Kept, RawEvent, Search

_LINE_END: Final = re.compile(rb"\r\n|\r|\n")

# Whole events with LF alone, whose data begins as a JSON object does, none of them named "error", with comments and
# the fields that are about reconnecting; or comments alone. `.` takes in a CR, which would end a line: the caller
# sees to it that there is none.
PLAIN: Final = re.compile(
    rb"(?:(?:(?:event: (?!error)|id:|:|retry:).*\n)*+data: ?\{.*\n\n|(?::.*\n)++\n)+\Z"
)

_plain: Final = PLAIN.match

# A chunk that is exactly one event, the most common of all.
_ONE: Final = re.compile(rb"(?:event: ?(.*)\n)?data: ?(\{.*)\n\n\Z")

# The longest beginning of an event that is held back, to be looked at as a whole: most events are shorter.
_MAX_HELD: Final = 16 * 1024

# No name that says anything is longer.
_MAX_NAME: Final = 1024

_CR: Final = 13

# A comment, and the fields that are about reconnecting.
_SILENT: Final = (b"", b"id", b"retry")


class SSEFramer:
    """Cuts bytes into events.

    Args:
        max_event: the largest event that is kept whole, in bytes.

    Attributes:
        idle: nothing is pending, so that the next byte begins an event.
    """

    __slots__ = (
        "_after_cr",
        "_between",
        "_data",
        "_held",
        "_line",
        "_long",
        "_max",
        "_name",
        "_out",
        "_rest",
        "_stray",
        "idle",
    )

    def __init__(self, max_event: int) -> None:
        self._max = max_event
        self._out: list[RawEvent] = []
        self._line = bytearray()
        self._long = False
        self._rest: Kept | None = None
        self._after_cr = False
        self._name: str | None = None
        self._data: Kept | None = None
        self._stray: Kept | None = None
        self._between = True
        self._held: bytes = b""
        self.idle = True

    @property
    def plain(self) -> Callable[[bytes], object]:
        """Finds whole events that need not be cut."""
        return _plain

    def worth(self, chunk: bytes, trigger: Search) -> bytes:
        """What has to be cut of these bytes and of those held back.

        Events in which the trigger finds nothing are left out, and the beginning of one is held back: most events
        say nothing, and need not be cut to know that, wherever their bytes were.
        """
        if not self._between:
            return chunk
        searched = max(len(self._held) - 1, 0)
        chunk, self._held = self._held + chunk, b""
        self.idle = False
        whole = chunk.replace(b"\r\n", b"\n") if _CR in chunk else chunk
        blank = whole.rfind(b"\n\n", searched)
        end = blank + 2 if blank >= 0 else 0
        whole, rest = whole[:end], whole[end:]
        if len(rest) > _MAX_HELD or _CR in rest or _CR in whole:
            return chunk  # lines that end with CR, one that may, or a long one: line by line
        self._held = rest
        self.idle = not rest
        return b"" if trigger(whole) is None and _plain(whole) is not None else whole

    def feed(self, chunk: bytes) -> list[RawEvent]:
        """The events that these bytes complete."""
        if self._between and len(chunk) <= self._max:
            event = _single(chunk)
            if event is not None:
                return [event]
        if self._after_cr and chunk:
            self._after_cr = False
            if chunk.startswith(b"\n"):
                chunk = chunk[1:]
        start = 0
        for end in _LINE_END.finditer(chunk):
            self._end_line(chunk[start : end.start()])
            start = end.end()
        if start < len(chunk):
            self._continue_line(chunk[start:])
        if chunk:
            self._after_cr = chunk.endswith(b"\r")
        self._between = not (
            self._line
            or self._long
            or self._after_cr
            or self._name is not None
            or self._data is not None
            or self._stray is not None
        )
        self.idle = self._between and not self._held
        return self._taken()

    def finish(self) -> list[RawEvent]:
        """The events that the end of the source completes: a last line and a last blank line may be missing."""
        held, self._held = self._held, b""
        self._out = self.feed(held)
        self._end_line(b"")
        self._dispatch()
        return self._taken()

    def _taken(self) -> list[RawEvent]:
        events, self._out = self._out, []
        return events

    def _continue_line(self, piece: bytes) -> None:
        """Take in a piece of a line that has not ended."""
        if self._long:
            self._continue_long(piece)
            return
        self._line += piece
        if len(self._line) <= self._max:
            return
        # Too long to be kept as a line: if it is data, the rest goes to its event piece by piece.
        self._long = True
        line = bytes(self._line)
        self._line.clear()
        if line.startswith(b"data:"):
            self._field(line)
            self._rest = self._data

    def _continue_long(self, piece: bytes) -> None:
        if self._rest is not None:
            self._rest.add(piece)

    def _end_line(self, piece: bytes) -> None:
        """Take in the end of a line, without what ends it."""
        if self._long:
            self._continue_long(piece)
            self._long, self._rest = False, None
            return
        if self._line:
            piece = bytes(self._line + piece)
            self._line.clear()
        if piece:
            self._field(piece)
        else:
            self._dispatch()

    def _field(self, line: bytes) -> None:
        """One whole line that is not blank."""
        field, _, value = line.partition(b":")
        if value.startswith(b" "):
            value = value[1:]
        if field == b"data":
            self._add_data(value)
        elif field == b"event":
            self._name = value[:_MAX_NAME].decode("utf-8", "replace") or None
        elif field == b"error":
            self._out.append(("error", value, None))
        elif field in _SILENT:
            return
        elif self._stray is not None or line.lstrip()[:1] in (b"{", b"["):
            self._stray = self._stray or Kept(self._max)
            self._stray.add(line + b"\n")

    def _add_data(self, value: bytes) -> None:
        if self._data is None:
            self._data = Kept(self._max)
        else:
            self._data.add(b"\n")
        self._data.add(value)

    def _dispatch(self) -> None:
        """A blank line, or the end of the source: what was collected is an event."""
        if self._stray is not None:
            self._out.append(self._stray.event(None))
            self._stray = None
        if self._data is not None:
            self._out.append(self._data.event(self._name))
            self._data = None
        self._name = None


def _single(chunk: bytes) -> RawEvent | None:
    """The event that a chunk is, where it is exactly one of the common form."""
    match = None if _CR in chunk else _ONE.match(chunk)
    if match is None:
        return None
    name = match[1]
    return name[:_MAX_NAME].decode("utf-8", "replace") or None if name else None, match[2], None
