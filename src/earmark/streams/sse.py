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
from collections.abc import Sequence
from typing import Final

from earmark.streams.kept import Kept, RawEvent, Search, anything

_LINE_END: Final = re.compile(rb"\r\n|\r|\n")

# Atomic: a CRLF is never taken for two line ends.
_BLANK_LINE: Final = re.compile(rb"(?>\r\n|\r|\n)(?>\r\n|\r|\n)")

# Whole events whose data begins as a JSON object does, none of them named "error", with comments and the fields that
# are about reconnecting; or such lines alone. `.` takes in a CR, also one that is no part of a CRLF and so ends a
# line: the caller sees to it that there is none.
PLAIN: Final = re.compile(
    rb"(?:data: ?\{.*\n\r?\n|(?:(?:event: (?!error)|id:|:|retry:).*\n)++(?:data: ?\{.*\n)?+\r?\n)++\Z"
)

_plain: Final = PLAIN.match

lone_cr: Final = re.compile(rb"\r(?!\n)").search
"""Finds a CR that ends a line by itself, or may be the first half of a CRLF that was cut."""

# An event of the most common form, in bytes without CR.
_COMMON: Final = re.compile(rb"(?:event: ?(.*)\n)?data: ?(.*)\n\n").match

# The longest beginning of an event that is held back, to be looked at as a whole: most events are shorter.
_MAX_HELD: Final = 16 * 1024

# No name that says anything is longer.
_MAX_NAME: Final = 1024

_CR: Final = 13

_NONE: Final[Sequence[RawEvent]] = ()

# A comment, and the fields that are about reconnecting.
_SILENT: Final = (b"", b"id", b"retry")


class SSEFramer:
    """Cuts bytes into events.

    Most events say nothing. Pieces of a body are looked at as a whole for what can matter, from the beginning of an
    event to the last blank line that is here, and cut only where something is found; the beginning of the event after
    that is held back until its end has come. Whatever is uncommon (a CR without LF, a long event) is cut line by line
    from there on, until an event ends.

    Args:
        max_event: the largest event that is kept whole, in bytes.

    Attributes:
        idle: nothing is pending, so that the next byte begins an event.
        plain: finds whole events that need not be cut.
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

    plain: Search | None = _plain

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

    def feed(self, chunk: bytes, trigger: Search = anything) -> Sequence[RawEvent]:
        """The events that these bytes complete, but not those of JSON objects in which the trigger finds nothing."""
        if not self._between:
            return self._resume(chunk, trigger)
        before = len(self._held)
        body = self._held + chunk
        searched = before - 1 if before else 0  # the LF before a blank line may be held back
        blank = body.rfind(b"\n\n", searched)
        end = blank + 2 if blank >= 0 else 0
        if _CR in body:
            if lone_cr(body) is not None:
                return self._cut_from_here(body)
            blank = body.rfind(b"\n\r\n", searched)
            end = max(end, blank + 3 if blank >= 0 else 0)
        rest = body[end:]
        if len(rest) > _MAX_HELD:
            return self._cut_from_here(body)
        self._held = rest
        self.idle = not rest
        if not end:
            return _NONE
        whole = body[:end]
        if trigger(whole) is None and _plain(whole) is not None:
            return _NONE
        events = _common(whole) if end <= self._max else None
        return self._cut(whole) if events is None else events

    def _resume(self, chunk: bytes, trigger: Search) -> Sequence[RawEvent]:
        """Cut line by line up to the end of an event, and go on as ever behind it."""
        end = _first_end(chunk)
        if not end:
            return self._cut(chunk)
        events = self._cut(chunk[:end])
        rest = chunk[end:]
        if not rest:
            return events
        return [*events, *(self.feed(rest, trigger) if self._between else self._cut(rest))]

    def _cut_from_here(self, body: bytes) -> list[RawEvent]:
        self._held = b""
        return self._cut(body)

    def _cut(self, chunk: bytes) -> list[RawEvent]:
        """The events that these bytes complete, line by line."""
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
        self._out = self._cut(held)
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
            self._name = _name(value)
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


def _first_end(chunk: bytes) -> int:
    """Where the first blank line ends; 0 where there is none."""
    if _CR in chunk:
        found = _BLANK_LINE.search(chunk)
        return found.end() if found else 0
    blank = chunk.find(b"\n\n")
    return blank + 2 if blank >= 0 else 0


def _common(whole: bytes) -> list[RawEvent] | None:
    """The events that these bytes are, where all are of the common form."""
    if _CR in whole:
        whole = whole.replace(b"\r\n", b"\n")
    events: list[RawEvent] = []
    at, end = 0, len(whole)
    while at < end:
        event = _COMMON(whole, at)
        if event is None:
            return None
        name = event[1]
        events.append((_name(name) if name else None, event[2], None))
        at = event.end()
    return events


def _name(value: bytes) -> str | None:
    """The name of an event, as far as it can say anything; an empty one is none."""
    return value[:_MAX_NAME].decode("utf-8", "replace") or None
