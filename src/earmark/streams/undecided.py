"""The dialect of a stream that has not yet said which it speaks: it keeps the events that said nothing.

An event that says nothing about the dialect may still say something about the usage, or be the error with which
everything ends, so it is not thrown away but read again by the dialect that turns up. A stream must not be collected
for ever either, neither many events nor large ones: of those that say nothing the latest are kept. The search has no
such bound. A provider that is busy sends a ping every few seconds for as long as it takes, and to guess then would be
to guess wrong; what never says what it is, is read as most streams are when it ends, or says `[DONE]`.
"""

from __future__ import annotations

import re
from collections import deque
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
        expected_choices: how many choices the request asked for.

    Attributes:
        found: the dialect of the stream, or None.
    """

    name: ClassVar[str] = ""
    trigger: ClassVar[re.Pattern[bytes]] = re.compile(b"")  # found in anything

    __slots__ = (
        "_events",
        "_expected",
        "_find",
        "_otherwise",
        "_size",
        "_unkept",
        "_unknown",
        "found",
    )

    usage: Usage | None = None
    ended = False
    finished = False
    error: str | None = None

    def __init__(self, find: Find, otherwise: DialectFactory, expected_choices: int = 1) -> None:
        self._find = find
        self._otherwise = otherwise
        self._expected = expected_choices
        self._unknown: Dialect | None = (
            None  # reads what is kept no longer, should nothing better turn up
        )
        self._events: deque[tuple[str | None, Mapping[str, Any] | str, int]] = deque()
        self._size = 0
        self._unkept: int | None = 0  # the length of the text in what was kept no longer
        self.found: DialectFactory | None = None

    def observe(self, event: str | None, payload: Mapping[str, Any]) -> None:
        """Keep one event, and look whether it tells."""
        self._keep(event, payload)

    def observe_text(self, event: str | None, data: str) -> None:
        """Keep the text of one, and look whether it tells."""
        self._keep(event, data)
        if self.found is None and data.strip() == "[DONE]":
            self.give_up()

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
        """No more events come: what there was is read as most streams are, if there was anything."""
        if self._events:
            self.found = self._take_otherwise

    def replay(self, dialect: Dialect, *, measured: bool = True) -> int | None:
        """Let the dialect that was found read what was kept.

        Returns the length of the text; None where it is unknown, or not to be measured.
        """
        known = self._unkept if measured else None
        for event, data, _ in self._events:
            _observe(dialect, event, data)
            if known is not None:
                length = dialect.text_length(event, data)
                known = None if length is None else known + length
        self._events.clear()
        return known

    def _take_otherwise(self, expected_choices: int) -> Dialect:
        if self._unknown is None:
            self._unknown = self._otherwise(expected_choices)
        return self._unknown

    def _keep(self, event: str | None, data: Mapping[str, Any] | str) -> None:
        self.found = self._find(event, data)
        size = 0 if self.found is not None else _size_of(data) + len(event or "")
        self._events.append((event, data, size))
        self._size += size
        while len(self._events) > _MAX_EVENTS or (self._size > _MAX_SIZE and len(self._events) > 1):
            self._let_go(*self._events.popleft())

    def _let_go(self, event: str | None, data: Mapping[str, Any] | str, size: int) -> None:
        """Have it read as most streams are."""
        self._size -= size
        dialect = self._take_otherwise(self._expected)
        _observe(dialect, event, data)
        length = dialect.text_length(event, data)
        self._unkept = None if self._unkept is None or length is None else self._unkept + length


def _observe(dialect: Dialect, event: str | None, data: Mapping[str, Any] | str) -> None:
    """Let a dialect read one event."""
    if isinstance(data, str):
        dialect.observe_text(event, data)
    else:
        dialect.observe(event, data)


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
