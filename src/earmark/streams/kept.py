"""The bytes of one event, within bounds: whole up to a limit, beyond it their beginning and their end.

`response.completed` repeats the whole response and alone has the usage, near its end, so an event cannot just
be thrown away for its size; and it cannot just be collected either, since the size is the sender's to choose.
Of an event above the limit the last 64 KiB are searched for the usage object and the reasons of finishing, and its type
is looked for in its first bytes; that is enough to tell a dialect what it would have read in the whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, cast

from earmark.streams.jsontext import value_at

HEAD: Final = 4 * 1024
TAIL: Final = 64 * 1024

RawEvent = tuple[str | None, bytes, bytes | None]
"""The name of an event, its data, and None; of one above the limit the beginning and the end of its data."""

Search = Callable[[bytes], object]
"""Looks at bytes; None where it finds nothing."""


def anything(_: bytes) -> bool:
    """Find something in whatever there is."""
    return True


_USAGE: Final = re.compile(r'"(usage|usageMetadata)"\s*:\s*(?=\{)')
# The reasons of finishing, each with the list in which a dialect looks for it, and alone at the top.
_REASON: Final = re.compile(r'"(finish_?[rR]eason|stop_reason)"\s*:\s*"([^"\\]{1,100})"')
_LISTS: Final = {
    "finishReason": "candidates",
    "finish_reason": "choices",
}
_TYPE: Final = re.compile(r'"type"\s*:\s*"([^"\\]{1,100})"')


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


def salvage(name: str | None, head: bytes, tail: bytes) -> Mapping[str, Any] | None:
    """What can be told of an event above the limit: its type, its usage and its reasons of finishing.

    They are put where a dialect looks for them.

    None where its end holds no usage object.
    """
    end = tail.decode("utf-8", "replace")
    found = None
    for key, report in _reports(end):
        found = key, report
    if found is None:
        return None
    key, report = found
    said = _TYPE.search(head.decode("utf-8", "replace"))
    kind = said[1] if said else name
    payload: dict[str, Any] = {key: report, "response": {key: report}, **_reasons(end)}
    return payload if kind is None else {"type": kind, **payload}


def _reasons(text: str) -> dict[str, Any]:
    """The reasons of finishing in a piece of JSON, as events have them."""
    found: dict[str, Any] = {}
    for name, reason in _REASON.findall(text):
        if name in _LISTS:
            found.setdefault(_LISTS[name], []).append({name: reason})
        else:
            found[name] = reason
    return found


def _reports(text: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The usage objects in a piece of JSON that have a count in them, from first to last."""
    for match in _USAGE.finditer(text):
        try:
            value, _ = value_at(text, match.end())
        except (ValueError, RecursionError):
            continue  # cut off, or no JSON: the next one may be whole
        report = cast("Mapping[str, Any]", value)
        if any(type(count) is int for count in report.values()):
            yield match[1], report
