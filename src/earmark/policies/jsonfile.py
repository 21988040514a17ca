"""JSON with the line of every value, and the names that stand twice in one object: Python's reader tells neither."""

from __future__ import annotations

import json
import re
from bisect import bisect
from typing import Final

from earmark.policies.mistakes import Path

_BLANK: Final = re.compile(r"[ \t\r\n]*")
_decode: Final = json.JSONDecoder().raw_decode


def read_json(text: str) -> tuple[object, dict[Path, int], list[Path]]:
    """The value that a text is, the line of each place in it, and the places of names that stand twice.

    Raises:
        ValueError: it is no JSON.
        RecursionError: it is nested too deeply.
    """
    data: object = json.loads(text)  # from here on the text is known to be JSON
    walk = _Walk(text)
    walk.value((), _skip(text, 0))
    return data, walk.lines, walk.repeated


class _Walk:
    """Goes once through a text that is JSON."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._newlines = [at.start() for at in re.finditer("\n", text)]
        self.lines: dict[Path, int] = {}
        self.repeated: list[Path] = []

    def value(self, path: Path, at: int) -> int:
        """Go through the value that begins there; return where it ends."""
        self.lines.setdefault(path, bisect(self._newlines, at) + 1)
        match self._text[at]:
            case "{":
                return self._object(path, at)
            case "[":
                return self._array(path, at)
            case _:
                return _decode(self._text, at)[1]

    def _object(self, path: Path, at: int) -> int:
        names: set[str] = set()
        at = _skip(self._text, at + 1)
        while self._text[at] != "}":
            name, end = _decode(self._text, at)
            below = (*path, name)
            if name in names:
                self.repeated.append(below)
            names.add(name)
            self.lines[below] = bisect(self._newlines, at) + 1
            colon = _skip(self._text, end)
            at = self._next(self.value(below, _skip(self._text, colon + 1)))
        return at + 1

    def _array(self, path: Path, at: int) -> int:
        at = _skip(self._text, at + 1)
        number = 0
        while self._text[at] != "]":
            at = self._next(self.value((*path, number), at))
            number += 1
        return at + 1

    def _next(self, at: int) -> int:
        """The beginning of the next member, or what closes them."""
        at = _skip(self._text, at)
        return _skip(self._text, at + 1) if self._text[at] == "," else at


def _skip(text: str, at: int) -> int:
    blank = _BLANK.match(text, at)
    return at if blank is None else blank.end()
