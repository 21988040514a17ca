"""What can be told of an event above the limit, of which only the beginning and the end were kept.

`response.completed` repeats the whole response and alone has the usage, near its end; an interaction repeats its
images, Ollama's last object its context. What a dialect reads in them stands at their edges, but where differs with
each dialect. So no name is looked for here: the JSON is put together again from its two ends. The containers that
are open where the beginning breaks off are those that the end closes, each at its depth, and what the end has of
one goes back into it. The dialect then reads the event as any other, with the middle missing.

Where something is missing stands `CUT`, so that whoever measures text knows that it cannot.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import EllipsisType
from typing import Any, Final, cast

from earmark.streams.jsontext import decoded

CUT: Final[EllipsisType] = ...
"""Stands for what was not kept: under the name of the member that was cut, and under "" for those after it."""

# A text, cut or not, or a mark that JSON is built with.
_TOKEN: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[{}\[\],]', re.DOTALL)
_QUOTE: Final = re.compile(r'\\.|"', re.DOTALL)
_HALF_AN_ESCAPE: Final = re.compile(r'\A\\+"?')
_NAME: Final = re.compile(r'\s*,?\s*("[^"\\]*(?:\\.[^"\\]*)*")\s*:', re.DOTALL)
_CLOSES: Final = {"{": "}", "[": "]"}


def salvage(head: bytes, tail: bytes) -> Mapping[str, Any] | None:
    """The members of a JSON object that stand in its beginning or in its end.

    Returns:
        None where the beginning is not that of an object.

    Raises:
        ValueError: the beginning is no JSON.
        RecursionError: it is nested too deeply.
    """
    start = head.decode("utf-8", "replace").lstrip()
    if not start.startswith("{"):
        return None
    opened = _opened(start)
    ends = [*_ends(tail.decode("utf-8", "replace"))]
    for container, (mark, text) in zip(opened, reversed(ends), strict=False):
        if (mark == "}") is not isinstance(container, dict):
            break  # the end is of something that was opened in the middle
        _put_back(container, text)
    return cast("Mapping[str, Any]", opened[0])


def _opened(text: str) -> list[dict[str, Any] | list[Any]]:
    """The containers that are open where a beginning breaks off, the outermost first, with what they have by then."""
    closes: list[str] = []
    good, marks = 0, ""
    for token in _TOKEN.finditer(text):
        mark = token[0]
        if mark == ",":
            good = token.start()
        elif mark in _CLOSES:
            closes.append(_CLOSES[mark])
            good = token.end()
        elif closes and mark == closes[-1]:
            closes.pop()
            good = token.end()
        else:
            continue
        marks = "".join(reversed(closes))
    opened: list[dict[str, Any] | list[Any]] = [decoded(text[:good] + marks)]
    while len(opened) < len(marks):
        last = opened[-1]
        inner = next(reversed(last if isinstance(last, list) else last.values()), None)
        if not isinstance(inner, (dict, list)):
            break  # a name that came twice: which of the two was open is not worth finding out
        opened.append(cast("dict[str, Any] | list[Any]", inner))
    for container in opened:
        if isinstance(container, dict):
            container[""] = CUT
    name = _NAME.match(text, good)
    last = opened[-1]
    if name is not None and len(opened) == len(marks) and isinstance(last, dict):
        last[decoded(name[1])] = CUT
    return opened


def _ends(text: str) -> Iterator[tuple[str, str]]:
    """Of each container that an end closes, the innermost first: its closing mark, and what stands before that."""
    # Of what it begins with nobody knows whether it is escaped; of all else the marks that follow tell.
    text = _HALF_AN_ESCAPE.sub("", text)
    if sum(quote[0] == '"' for quote in _QUOTE.finditer(text)) % 2:
        text = '"' + text  # it begins within a text
    depth, first = 0, None
    for token in _TOKEN.finditer(text):
        mark = token[0]
        if mark in _CLOSES:
            depth += 1
        elif mark in ("}", "]") and depth:
            depth -= 1
        elif mark in ("}", "]"):
            yield mark, "" if first is None else text[first : token.start()]
            first = None
        elif mark == "," and not depth and first is None:
            first = token.end()  # what stands before it began in the middle


def _put_back(container: dict[str, Any] | list[Any], text: str) -> None:
    """Add the members or elements in a piece of JSON, as far as it is JSON."""
    try:
        if isinstance(container, dict):
            container.update(decoded("{" + text + "}"))
        else:
            container.extend(decoded("[" + text + "]"))
    except (ValueError, RecursionError):
        return  # the others may be whole
