"""The dialect of a stream that has not yet said which it speaks: it keeps the events that said nothing.

An event that says nothing about the dialect may still say something about the usage, or be the error with which
everything ends, so it is not thrown away but read again by the dialect that turns up. A stream that never says
what it is must not be collected for ever either, and `[DONE]` has to be understood when it comes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from earmark.streams.detect import UNKNOWN, detect
from earmark.streams.dialect import Dialect, DialectFactory
from earmark.usage import Usage

# So many events that say nothing are kept, and so many characters of text.
_MAX_EVENTS: Final = 32
_MAX_TEXT: Final = 1024 * 1024


class Undecided:
    """A dialect that knows of no usage and no end, until one is `found`.

    Attributes:
        found: the dialect of the stream, or None.
    """

    name: ClassVar[str] = ""
    trigger: ClassVar[re.Pattern[bytes]] = re.compile(b"")  # found in anything

    __slots__ = ("_events", "_text", "found")

    usage: Usage | None = None
    authoritative = False
    ended = False
    finished = False
    error: str | None = None

    def __init__(self) -> None:
        self._events: list[tuple[str | None, Mapping[str, Any] | str]] = []
        self._text = 0
        self.found: DialectFactory | None = None

    def observe(self, event: str | None, payload: Mapping[str, Any]) -> None:
        """Keep one event, and look whether it tells."""
        self._keep(event, payload)

    def observe_text(self, event: str | None, data: str) -> None:
        """Keep the text of one, and look whether it tells."""
        self._text += len(data)
        self._keep(event, data)
        if self.found is None and (self._text >= _MAX_TEXT or data.strip() == "[DONE]"):
            self.found = UNKNOWN

    def text_length(self, event: str | None, payload: Mapping[str, Any]) -> int:
        """None that is known of: it is measured when the events are read again."""
        return 0

    def only_usage(self, event: str | None, payload: Mapping[str, Any]) -> bool:
        """Not that it is known of."""
        return False

    def give_up(self) -> None:
        """No more events come: what was kept is read as most streams are, if there is anything."""
        if self._events:
            self.found = UNKNOWN

    def replay(self, dialect: Dialect) -> int:
        """Let the dialect that was found read what was kept; returns the length of the text."""
        length = 0
        for event, data in self._events:
            if isinstance(data, str):
                dialect.observe_text(event, data)
            else:
                dialect.observe(event, data)
                length += dialect.text_length(event, data)
        self._events.clear()
        return length

    def _keep(self, event: str | None, data: Mapping[str, Any] | str) -> None:
        self._events.append((event, data))
        self.found = detect(event, data)
        if self.found is None and len(self._events) >= _MAX_EVENTS:
            self.found = UNKNOWN
