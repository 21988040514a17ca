"""JSON objects one after another: NDJSON, a streamed array, and a bare body are one framing.

All that is cut out are the objects at the top: what stands between them, whether newlines, the commas of an
array or its brackets, says nothing. So an array is read element by element while it comes (Gemini without
`alt=sse`), and an error body in place of a stream is seen as well.

A line that was cut must not swallow the rest of the stream: in a value that began as one line (NDJSON) a
`{` at the beginning of a line begins another. A value that is printed over several lines begins with a bare
brace, and there it does not.
"""

from __future__ import annotations

import re
from typing import Final

from earmark.streams.kept import Kept, RawEvent, Search, anything

_OUTSIDE_STRING: Final = re.compile(rb'["{}]')
_INSIDE_STRING: Final = re.compile(rb'["\\{]')


class JSONFramer:
    """Cuts bytes into the JSON objects at the top.

    Args:
        max_event: the largest object that is kept whole, in bytes.

    Attributes:
        idle: no object is open.
        plain: nothing: to see whether a piece is whole objects takes as long as to cut it.
    """

    __slots__ = (
        "_body",
        "_depth",
        "_escaped",
        "_in_string",
        "_max",
        "_new_line",
        "_printed",
        "idle",
    )

    plain: Search | None = None

    def __init__(self, max_event: int) -> None:
        self._max = max_event
        self._body: Kept | None = None
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._new_line = True
        self._printed: bool | None = None
        self.idle = True

    def feed(self, chunk: bytes, trigger: Search = anything) -> list[RawEvent]:
        """The objects that these bytes complete: all of them, since the cutting is what takes the time."""
        events: list[RawEvent] = []
        start = position = 0
        while position < len(chunk):
            if self._body is None:
                start = chunk.find(b"{", position)
                if start < 0:
                    break
                self._open()
                position = start + 1
                continue
            if self._escaped:
                self._escaped = False
                position += 1
                continue
            token = (_INSIDE_STRING if self._in_string else _OUTSIDE_STRING).search(chunk, position)
            if token is None:
                break
            position = token.end()
            if token[0] == b"{" and self._begins_another(chunk, start, token.start()):
                self._body.add(chunk[start : token.start()])
                events.append(self._body.event(None))
                start = token.start()
                self._open()
            elif self._closes(token[0]):
                self._body.add(chunk[start:position])
                events.append(self._body.event(None))
                self._body = None
        if self._body is not None:
            self._body.add(chunk[start:])
        if chunk:
            self._new_line = chunk.endswith(b"\n")
        self.idle = self._body is None
        return events

    def finish(self) -> list[RawEvent]:
        """What the end of the source leaves open: half an object, which is for the reader to judge."""
        if self._body is None:
            return []
        body, self._body = self._body, None
        return [body.event(None)]

    def _open(self) -> None:
        self._body = Kept(self._max)
        self._depth = 1
        self._in_string = False
        self._printed = None

    def _closes(self, token: bytes) -> bool:
        """Take in what opens, closes or escapes; True where it closes the object."""
        if token == b'"':
            self._in_string = not self._in_string
        elif token == b"\\":
            self._escaped = True
        elif not self._in_string:
            self._depth += 1 if token == b"{" else -1
        return self._depth == 0

    def _begins_another(self, chunk: bytes, start: int, at: int) -> bool:
        """Whether the brace there begins an object of its own, since the one that is open was cut."""
        after_newline = chunk[at - 1 : at] == b"\n" if at else self._new_line
        if not after_newline or self._body is None:
            return False
        if self._printed is None:
            # Once for each value: it may have thousands of lines that begin with a brace.
            self._printed = self._is_printed(self._body.beginning + chunk[start:at])
        return not self._printed

    def _is_printed(self, beginning: bytes) -> bool:
        """Whether the value is printed over several lines, as its first one tells."""
        first_line, _, _ = beginning.partition(b"\n")
        return first_line.strip() == b"{"
