"""The dialect of a stream that has not yet said which it speaks: it keeps the events that said nothing.

An event that says nothing about the dialect may still say something about the usage, or be the error with which
everything ends, so it is not thrown away but read again by the dialect that turns up. A stream that never says
what it is must not be collected for ever either, neither many events nor large ones, and `[DONE]` has to be
understood when it comes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, cast

from earmark.streams.dialect import Dialect, DialectFactory
from earmark.usage import Usage

Find = Callable[[str | None, Mapping[str, Any] | str], DialectFactory | None]
"""The dialect that one event alone belongs to, or None where it could be of several."""

# So many events that say nothing are kept, and about so many bytes.
_MAX_EVENTS: Final = 32
_MAX_SIZE: Final = 1024 * 1024
# What an object takes at least, whatever is in it.
_OBJECT: Final = 32


class Undecided:
    """A dialect that knows of no usage and no end, until one is `found`; then that one reads the stream.

    Args:
        find: looks for the dialect.
        otherwise: the dialect of a stream that never says.

    Attributes:
        found: the dialect of the stream, or None.
    """

    name: ClassVar[str] = ""
    trigger: ClassVar[re.Pattern[bytes]] = re.compile(b"")  # found in anything

    __slots__ = ("_events", "_find", "_otherwise", "_size", "found")

    usage: Usage | None = None
    ended = False
    finished = False
    error: str | None = None

    def __init__(self, find: Find, otherwise: DialectFactory) -> None:
        self._find = find
        self._otherwise = otherwise
        self._events: list[tuple[str | None, Mapping[str, Any] | str]] = []
        self._size = 0
        self.found: DialectFactory | None = None

    def observe(self, event: str | None, payload: Mapping[str, Any]) -> None:
        """Keep one event, and look whether it tells."""
        self._keep(event, payload)

    def observe_text(self, event: str | None, data: str) -> None:
        """Keep the text of one, and look whether it tells."""
        self._keep(event, data)
        if self.found is None and data.strip() == "[DONE]":
            self.found = self._otherwise

    def text_length(self, event: str | None, data: Mapping[str, Any] | str) -> int:
        """None that is known of: it is measured when the events are read again."""
        return 0

    def only_usage(self, event: str | None, payload: Mapping[str, Any]) -> bool:
        """Not that it is known of."""
        return False

    def final(self, *, complete: bool) -> bool:
        """Not that it is known of."""
        return False

    def give_up(self) -> None:
        """No more events come: what was kept is read as most streams are, if there is anything."""
        if self._events:
            self.found = self._otherwise

    def replay(self, dialect: Dialect) -> int | None:
        """Let the dialect that was found read what was kept; returns the length of the text, None where unknown."""
        lengths: list[int | None] = []
        for event, data in self._events:
            if isinstance(data, str):
                dialect.observe_text(event, data)
            else:
                dialect.observe(event, data)
            lengths.append(dialect.text_length(event, data))
        self._events.clear()
        known = [length for length in lengths if length is not None]
        return sum(known) if len(known) == len(lengths) else None

    def _keep(self, event: str | None, data: Mapping[str, Any] | str) -> None:
        self._events.append((event, data))
        self.found = self._find(event, data)
        if self.found is None:
            self._size += _size_of(data) + len(event or "")
            if self._size >= _MAX_SIZE or len(self._events) >= _MAX_EVENTS:
                self.found = self._otherwise


def decided(dialect: Dialect, expected_choices: int) -> Dialect:
    """The dialect that reads on from here: the one that was found, once it has read what was kept."""
    while isinstance(dialect, Undecided) and dialect.found is not None:
        found = dialect.found(expected_choices)
        dialect.replay(found)
        dialect = found
    return dialect


def _size_of(data: object) -> int:
    """About how many bytes a parsed event takes, as far as that matters: what is larger is not measured to its end."""
    size = 0
    pending = [data]
    while pending and size < _MAX_SIZE:
        value = pending.pop()
        size += _OBJECT
        if isinstance(value, (str, bytes, bytearray)):
            size += len(value)
        elif isinstance(value, Mapping):
            members = cast("Mapping[object, object]", value)
            pending.extend(members.keys())
            pending.extend(members.values())
        elif isinstance(value, (list, tuple)):
            pending.extend(cast("list[object]", value))
    return size
