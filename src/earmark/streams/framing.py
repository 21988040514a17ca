"""Which framing a body has, found out from its first bytes, and the cutting handed to it.

A gateway often does not know: the same endpoint answers with server-sent events, a JSON array or a JSON
error body. The first byte that is no blank tells JSON, the name of a field server-sent events; other text
counts as server-sent events as well, of which unknown lines are ignored. What is no text cannot be observed
(C69): gzip and zstd begin with bytes that no text has, and so does what brotli makes of a stream.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from typing import Final, Literal, Protocol

from earmark.streams.jsonvalues import JSONFramer
from earmark.streams.kept import RawEvent, Search
from earmark.streams.sse import SSEFramer

Kind = Literal["sse", "json", "opaque"]

_BOM: Final = b"\xef\xbb\xbf"
_BLANK: Final = b" \t\r\n"
_JSON: Final = re.compile(rb"\{|\[[ \t\r\n]*[{\]]")
_JSON_PERHAPS: Final = re.compile(rb"\[[ \t\r\n]*\Z")
_FIELD: Final = re.compile(rb"(?:data|event|id|retry|error)?:")
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")

# So many bytes that say nothing else are looked at before they count as text.
_ENOUGH: Final = 64


class Framer(Protocol):
    """Cuts bytes into events.

    `idle` says that nothing is pending, so that the next byte begins an event. While it is, bytes in which `plain`
    finds something, and `lone_cr` nothing, are whole events of JSON objects, and need not be cut to know that.
    """

    idle: bool
    plain: Search | None

    def feed(self, chunk: bytes, trigger: Search = ...) -> Sequence[RawEvent]:
        """The events that these bytes complete.

        Those of JSON objects in which `trigger` finds nothing may be left out.
        """
        ...

    def finish(self) -> list[RawEvent]:
        """The events that the end of the source completes."""
        ...


class Framing:
    """Cuts a body into events, whatever its framing is.

    Args:
        max_event: the largest event that is kept whole, in bytes.

    Attributes:
        kind: the framing, or None while the first bytes have not told it.
        framer: what cuts, once that is known and can be cut.
    """

    __slots__ = ("_head", "_max", "framer", "kind")

    def __init__(self, max_event: int) -> None:
        self._max = max_event
        self._head = b""
        self.framer: Framer | None = None
        self.kind: Kind | None = None

    def feed(self, chunk: bytes) -> Sequence[RawEvent]:
        """The events that these bytes complete."""
        if self.framer is not None:
            return self.framer.feed(chunk)
        if self.kind is not None:
            return []
        if not self._head and _FIELD.match(chunk):  # as most bodies begin
            self.kind = "sse"
            self.framer = SSEFramer(self._max)
            return self.framer.feed(chunk)
        self._head = _without_blank_lines(self._head + chunk)
        self.kind = recognise(self._head)
        return self._begin()

    def finish(self) -> list[RawEvent]:
        """The events that the end of the source completes."""
        events: Sequence[RawEvent] = []
        if self.kind is None and self._head:
            self.kind = recognise(self._head + b"\n" * _ENOUGH)
            events = self._begin()
        if self.framer is not None:
            return [*events, *self.framer.finish()]
        return list(events)

    def _begin(self) -> Sequence[RawEvent]:
        """Cut the first bytes, once it is known how."""
        if self.kind is None:
            return []
        head, self._head = self._head.removeprefix(_BOM), b""
        if self.kind == "opaque":
            return []
        self.framer = SSEFramer(self._max) if self.kind == "sse" else JSONFramer(self._max)
        return self.framer.feed(head)


def _without_blank_lines(head: bytes) -> bytes:
    """The first bytes of a body from its first line on that is not blank; blanks that do not end are not kept."""
    text = head.removeprefix(_BOM)
    start = len(text) - len(text.lstrip(_BLANK))
    line = max(text.rfind(b"\n", 0, start), text.rfind(b"\r", 0, start)) + 1
    return text[max(line, start - _ENOUGH) :]


def recognise(head: bytes) -> Kind | None:
    """The framing of a body that begins with these bytes, or None where more of them are needed."""
    text = head.removeprefix(_BOM).lstrip(_BLANK)
    if _JSON.match(text):
        return "json"
    if _FIELD.match(text):
        return "sse"
    if not _is_text(head[:_ENOUGH]):
        return "opaque"
    if len(head) < _ENOUGH or not text:
        return None
    # Blanks that do not end are no reason to collect them: an array says nothing else in so many bytes.
    return "json" if _JSON_PERHAPS.match(text) else "sse"


def _is_text(piece: bytes) -> bool:
    """Whether this may be the beginning of a text in UTF-8; the last character may be cut."""
    if _CONTROL.search(piece):
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(piece)
    except UnicodeDecodeError:
        return False
    return True
